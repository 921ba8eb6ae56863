// UTF-8 functions of the tokenizers: validation, decoding, and iteration over characters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace te::text {

/// Length in bytes of the well-formed UTF-8 sequence (Unicode table 3-7) at the beginning of `text` (not empty): 1 to
/// 4, or 0 if there is none.
size_t utf8_sequence_length(std::string_view text);

/// The code point of a sequence of utf8_sequence_length() bytes.
uint32_t utf8_code_point(std::string_view sequence);

void append_utf8(uint32_t code_point, std::string& text);

/// Length of the longest well-formed prefix of `text`: text.size() if all of it is UTF-8. Fast for ASCII.
size_t valid_utf8_prefix(std::string_view text);

/// Calls on_run(run, valid) for the maximal runs of valid UTF-8 and of invalid bytes in `text`, in order.
template <class OnRun>
void for_each_utf8_run(std::string_view text, OnRun on_run) {
  while (!text.empty()) {
    if (const size_t valid = valid_utf8_prefix(text); valid > 0) {
      on_run(text.substr(0, valid), true);
      text.remove_prefix(valid);
    }
    size_t broken = 0;
    while (broken < text.size() && utf8_sequence_length(text.substr(broken)) == 0) ++broken;
    if (broken > 0) on_run(text.substr(0, broken), false);
    text.remove_prefix(broken);
  }
}

/// `text` for a message: in backticks, on one line, shortened when long.
std::string shown(std::string_view text);

/// The Unicode property White_Space.
bool is_white_space(uint32_t code_point);
/// Python's str.isspace: also ASCII's four separators.
bool is_python_space(uint32_t code_point);

}  // namespace te::text
