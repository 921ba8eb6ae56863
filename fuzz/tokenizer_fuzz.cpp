// Opens arbitrary bytes as a tokenizer.json; an accepted tokenizer encodes and decodes some texts. Every failure must
// be a UserError, and every token must be in the vocabulary.
#include "text/tokenizer.h"

#include <string_view>
#include <vector>

#include "core/error.h"
#include "fuzz_file.h"

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kTexts[] = {""sv, "Hello, world! It's 1234567 o'clock.\n\n  \tabc"sv,
                                       "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80<|end|> a\0b"sv,
                                       "\xff\xfe broken \xe4\xb8 utf-8 \xf0\x9f"sv,
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"sv};

void use(const te::text::Tokenizer& tokenizer) {
  for (const std::string_view text : kTexts) {
    for (const te::text::SpecialTokens special :
         {te::text::SpecialTokens::kMatch, te::text::SpecialTokens::kAsText}) {
      std::vector<int32_t> tokens;
      tokenizer.encode(text, tokens, special);
      for (const int32_t token : tokens)
        TE_CHECK(token >= 0 && token < tokenizer.vocab_size(), "token {} of {}", token,
                 tokenizer.vocab_size());
      tokenizer.decode(tokens);
    }
  }
  TE_CHECK(tokenizer.end_of_document() < tokenizer.vocab_size(), "end of document {}",
           tokenizer.end_of_document());
  tokenizer.find_token("<|end|>");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static te::fuzz::FuzzFile file("tokenizer.json");
  file.write({data, size});
  try {
    use(*te::text::make_tokenizer(file.path()));
  } catch (const te::UserError&) {
  }
  return 0;
}
