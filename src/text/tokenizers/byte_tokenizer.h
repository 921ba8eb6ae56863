// The byte-level tokenizer: one token per byte, and the end-of-document token 256.
#pragma once

#include "text/tokenizer.h"

namespace te::text {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int64_t kVocabSize = 257;

  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::string name() const override { return "bytes"; }
  /// One byte, or "<|endoftext|>".
  std::optional<int32_t> find_token(std::string_view token) const override;

 private:
  /// Ignores `special`: every byte is its own token, so no text contains the end-of-document token.
  void encode_text(std::string_view text, std::vector<int32_t>& tokens, SpecialTokens special) const override;
};

}  // namespace te::text
