// The list of tokenizers.

#include "core/error.h"
#include "data/tokenizer.h"
#include "data/tokenizers/byte_tokenizer.h"

namespace te {

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  user_error(
      "tokenizer `{}`: unknown; the tokenizers are: bytes (for a Hugging Face tokenizer.json use "
      "scripts/tokenize_hf.py)",
      spec);
}

}  // namespace te
