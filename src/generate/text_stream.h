// From tokens to text as it comes into being: what can no longer change is handed out at once.
//
// Held back are the beginning of a character whose other bytes are still to come, and whatever may be the beginning of
// a stop string. What comes out is valid UTF-8: bytes that can no longer become a character turn into U+FFFD.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace te::generate {

/// The text with U+FFFD in place of bytes that are no UTF-8.
std::string valid_utf8(std::string_view bytes);

class TextStream {
 public:
  /// `prompt`: the tokens of the text before (without a begin-of-document token), since a tokenizer may drop the space
  /// in front of a first token. Stop strings are not empty.
  TextStream(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stops);

  /// The text that is certain after this token and was not before; nothing once stopped().
  std::string add(int32_t token);
  /// A stop string has come; it and what follows are not part of the text.
  bool stopped() const { return stopped_; }
  /// What was held back, when no more tokens come.
  std::string finish();

 private:
  std::string bytes_of(int32_t token);
  std::string take_characters(bool all);
  std::string release(bool all);

  const text::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<int32_t> window_;  ///< the last tokens; those from shown_ on have not been turned into bytes
  size_t shown_ = 0;
  std::string bytes_;  ///< of the text, not yet known to be characters
  std::string text_;   ///< characters, perhaps the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace te::generate
