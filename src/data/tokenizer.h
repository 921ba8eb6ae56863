// Tokenizers turn text into token ids and back. One file per tokenizer; make_tokenizer() knows them all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace te {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of `text` (UTF-8, any bytes are accepted) to `tokens`; adds no special token.
  virtual void encode(std::string_view text, std::vector<int32_t>& tokens) const = 0;

  /// The text of the tokens; special tokens show as their name. A token outside [0, vocab_size()) is a
  /// UserError.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  virtual int64_t vocab_size() const = 0;
  virtual int32_t end_of_document() const = 0;  ///< id of the token that ends every document
  virtual std::string name() const = 0;         ///< the spec that makes this tokenizer
};

/// spec: "bytes" (256 byte values and an end-of-document token, vocab_size 257). UserError for anything else.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& spec);

}  // namespace te
