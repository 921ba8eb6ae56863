// Parses arbitrary bytes as a SentencePiece model of plain BPE, without the checks of libsentencepiece, and encodes
// some texts with an accepted model. Every failure must be a UserError, and every token must be in the vocabulary.
#include "text/tokenizers/sentencepiece_bpe.h"

#include <string_view>
#include <vector>

#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    auto spec = te::text::read_sentencepiece_bpe(std::string(reinterpret_cast<const char*>(data), size));
    if (!spec) return 0;
    const te::text::PipelineTokenizer tokenizer(std::move(*spec), "input");
    std::vector<int32_t> tokens;
    for (const std::string_view text :
         {"", "Hello, world! 12345  <s>\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
          "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80"}) {
      tokenizer.encode(text, tokens);
    }
    for (const int32_t token : tokens) {
      TE_CHECK(token >= 0 && token < tokenizer.vocab_size(), "token {} of {}", token, tokenizer.vocab_size());
    }
  } catch (const te::UserError&) {
  }
  return 0;
}
