#include "core/printable.h"

#include <spdlog/fmt/fmt.h>

#include <cstdint>

namespace te {
namespace {

/// Size in bytes of the UTF-8 character at the beginning of `text`, and its code point in `code`; 0 if it is invalid.
size_t character_at(std::string_view text, uint32_t& code) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead < 0x80   ? 1
                      : lead < 0xC2 ? 0
                      : lead < 0xE0 ? 2
                      : lead < 0xF0 ? 3
                      : lead < 0xF5 ? 4
                                    : 0;
  if (size == 0 || size > text.size()) return 0;
  code = size == 1 ? lead : lead & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte & 0x3Fu);
  }
  const bool too_long = (size == 3 && code < 0x800) || (size == 4 && code < 0x10000);
  return too_long || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF ? 0 : size;
}

/// Controls C0 and C1, line and paragraph separators, and marks that change the writing direction.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t size = character_at(text, code), taken = size == 0 ? 1 : size;
    if (size == 0 || is_control(code)) {
      for (const char c : text.substr(0, taken))
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  return result;
}

}  // namespace te
