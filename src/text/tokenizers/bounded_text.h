// A string with a size limit that is checked before memory is allocated.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.h"

namespace te::text {

class BoundedText {
 public:
  /// Limit for what the replacements of a tokenizer.json produce from `bytes` bytes; real tokenizers stay far below.
  static constexpr size_t limit_of(size_t bytes) { return 256 * bytes + (size_t{1} << 20); }

  /// Appends to `text`, up to a total of `limit` bytes. `part`: the part of tokenizer.json, for the message.
  BoundedText(std::string& text, size_t limit, const char* part) : text_(text), limit_(limit), part_(part) {}

  /// UserError if the text would exceed the limit.
  BoundedText& operator+=(std::string_view more) {
    if (more.size() > limit_ || text_.size() > limit_ - more.size()) refuse();
    text_ += more;
    return *this;
  }
  /// Checks the limit after appending to text() directly.
  void check() const {
    if (text_.size() > limit_) refuse();
  }
  /// Direct access, for steps whose output is at most a small multiple of their input.
  std::string& text() { return text_; }

 private:
  [[noreturn]] void refuse() const {
    user_error(
        "the tokenizer's {} expands a part of a text to more than {} bytes; correct its `Replace`, "
        "`Prepend` and `Precompiled` in tokenizer.json",
        part_, limit_);
  }

  std::string& text_;
  size_t limit_;
  const char* part_;
};

/// Appends `text` with `from` (not empty) replaced by `to` to `result`, a std::string or a BoundedText.
template <class Result>
void append_replaced(std::string_view text, std::string_view from, std::string_view to, Result& result) {
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    result += text.substr(done, at - done);
    result += to;
    done = at + from.size();
  }
  result += text.substr(done);
}

}  // namespace te::text
