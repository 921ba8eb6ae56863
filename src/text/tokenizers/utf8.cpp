#include "text/tokenizers/utf8.h"

#include <algorithm>
#include <cstring>

#include "core/printable.h"

namespace te::text {

size_t utf8_sequence_length(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto continues = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;
  if (first < 0xE0) return continues(1) ? 2 : 0;
  if (first < 0xF0) {  // no overlong forms (E0), no surrogates (ED)
    const bool second = continues(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return second && continues(2) ? 3 : 0;
  }
  if (first > 0xF4) return 0;  // no overlong forms (F0), nothing above U+10FFFF (F4)
  const bool second = continues(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
  return second && continues(2) && continues(3) ? 4 : 0;
}

uint32_t utf8_code_point(std::string_view sequence) {
  const auto bits = [sequence](size_t i) { return static_cast<uint32_t>(sequence[i]) & 0x3F; };
  const auto first = static_cast<uint8_t>(sequence[0]);
  switch (sequence.size()) {
    case 1:
      return first;
    case 2:
      return (first & 0x1FU) << 6 | bits(1);
    case 3:
      return (first & 0x0FU) << 12 | bits(1) << 6 | bits(2);
    default:
      return (first & 0x07U) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3);
  }
}

void append_utf8(uint32_t c, std::string& text) {
  const auto put = [&text](uint32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      uint64_t block = 0;
      std::memcpy(&block, text.data() + i, 8);
      if ((block & 0x8080808080808080U) == 0) {
        i += 8;
        continue;
      }
    }
    const size_t length = utf8_sequence_length(text.substr(i));
    if (length == 0) break;
    i += length;
  }
  return i;
}

std::string shown(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string result = "`";
  while (!text.empty() && result.size() < kLongest) {
    const size_t length = utf8_sequence_length(text);
    const size_t taken = std::max<size_t>(length, 1);
    result += printable(text.substr(0, taken));
    text.remove_prefix(taken);
  }
  return result + (text.empty() ? "`" : "...`");
}

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_python_space(uint32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

}  // namespace te::text
