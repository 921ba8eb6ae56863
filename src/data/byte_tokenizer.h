// The byte-level tokenizer: a token per byte of UTF-8, and 256 for the end of a document.
#pragma once

#include "data/tokenizer.h"

namespace te {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int64_t kVocabSize = 257;

  void encode(std::string_view text, std::vector<int32_t>& tokens) const override;
  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::string name() const override { return "bytes"; }
};

}  // namespace te
