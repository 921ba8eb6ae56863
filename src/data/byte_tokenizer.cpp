// A byte is its own token, so encoding is a copy.
#include "data/byte_tokenizer.h"

#include "core/error.h"

namespace te {

void ByteTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens) const {
  const size_t start = tokens.size();
  tokens.resize(start + text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[start + i] = static_cast<uint8_t>(text[i]);
}

std::string ByteTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (int32_t token : tokens) {
    if (token < 0 || token >= kVocabSize) {
      user_error("token {}: the tokenizer `bytes` has ids 0 to {}; use the tokenizer that made the data",
                 token, kVocabSize - 1);
    }
    if (token == kEndOfDocument) {
      text += "<|endoftext|>";
    } else {
      text += static_cast<char>(token);
    }
  }
  return text;
}

}  // namespace te
