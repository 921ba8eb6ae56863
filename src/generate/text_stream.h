// Converts tokens to streamed text: returns text as soon as it cannot change.
//
// Holds back the start of an incomplete character and text that may be the start of a stop string. The output is valid
// UTF-8: bytes that cannot become a character are replaced by U+FFFD.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace te::generate {

/// The text with U+FFFD in place of bytes that are not valid UTF-8.
std::string valid_utf8(std::string_view bytes);

class TextStream {
 public:
  /// `prompt`: the tokens before the text (without a begin-of-document token); needed because a tokenizer may drop the
  /// space before the first token. Stop strings must not be empty.
  TextStream(const text::Tokenizer& tokenizer, std::span<const int32_t> prompt,
             std::vector<std::string> stops);

  /// Adds a token and returns the text that can no longer change; empty after stopped().
  std::string add(int32_t token);
  /// True after a stop string; the string and all text after it are not part of the output.
  bool stopped() const { return stopped_; }
  /// Ends the stream and returns the text that was held back.
  std::string finish();

 private:
  std::string bytes_of(int32_t token);
  std::string take_characters(bool all);
  std::string release(bool all);

  const text::Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<int32_t> window_;  ///< the last tokens; those from shown_ on have not been converted to bytes
  size_t shown_ = 0;
  std::string bytes_;  ///< bytes of the text that are not yet converted to characters
  std::string text_;   ///< characters that may be the start of a stop string
  bool stopped_ = false;
};

}  // namespace te::generate
