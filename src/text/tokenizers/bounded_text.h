// A text that grows to a limit: what would be longer is refused before there is memory for it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.h"

namespace te::text {

class BoundedText {
 public:
  /// The most that the replacements of a tokenizer.json make of `bytes`; no real tokenizer comes near this.
  static constexpr size_t most_of(size_t bytes) { return 256 * bytes + (size_t{1} << 20); }

  /// Appends to `text`, up to `most` bytes in all. `part`: of tokenizer.json, for the message.
  BoundedText(std::string& text, size_t most, const char* part) : text_(text), most_(most), part_(part) {}

  /// UserError when the text would be longer than the limit.
  BoundedText& operator+=(std::string_view more) {
    if (more.size() > most_ || text_.size() > most_ - more.size()) refuse();
    text_ += more;
    return *this;
  }
  /// Checks what was appended to text() itself.
  void check() const {
    if (text_.size() > most_) refuse();
  }
  /// For what makes at most a small multiple of a text.
  std::string& text() { return text_; }

 private:
  [[noreturn]] void refuse() const {
    user_error(
        "the tokenizer's {} makes more than {} bytes of a part of a text; correct its `Replace`, `Prepend` "
        "and "
        "`Precompiled` in tokenizer.json",
        part_, most_);
  }

  std::string& text_;
  size_t most_;
  const char* part_;
};

/// Appends `text` to `result`, a std::string or a BoundedText, with `from`, not empty, replaced by `to`.
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
