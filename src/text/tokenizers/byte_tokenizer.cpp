// Every byte is its own token, so encoding is a copy.
#include "text/tokenizers/byte_tokenizer.h"

#include "core/error.h"

namespace te::text {

namespace {
constexpr std::string_view kEndOfDocumentName = "<|endoftext|>";
}

void ByteTokenizer::encode_text(std::string_view text, std::vector<int32_t>& tokens,
                                SpecialTokens /*special*/) const {
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
      text += kEndOfDocumentName;
    } else {
      text += static_cast<char>(token);
    }
  }
  return text;
}

std::optional<int32_t> ByteTokenizer::find_token(std::string_view token) const {
  if (token == kEndOfDocumentName) return kEndOfDocument;
  if (token.size() == 1) return static_cast<uint8_t>(token[0]);
  return {};
}

}  // namespace te::text
