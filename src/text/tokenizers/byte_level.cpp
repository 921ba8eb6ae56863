#include "text/tokenizers/byte_level.h"

#include <array>

#include "text/tokenizers/utf8.h"

namespace te::text {

namespace {

constexpr uint32_t kEnd = 0x100 + 68;  // 68 bytes are not printable

struct Alphabet {
  std::array<uint32_t, 256> characters{};
  std::array<int16_t, kEnd> bytes{};

  Alphabet() {
    bytes.fill(-1);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      characters[byte] = printable ? byte : next++;
      bytes[characters[byte]] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

uint32_t byte_level_character(uint8_t byte) {
  return alphabet().characters[byte];
}

std::optional<std::string> byte_level_bytes(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const size_t length = utf8_sequence_length(token);
    if (length == 0) return {};
    const uint32_t character = utf8_code_point(token.substr(0, length));
    if (character >= kEnd || alphabet().bytes[character] < 0) return {};
    bytes += static_cast<char>(alphabet().bytes[character]);
    token.remove_prefix(length);
  }
  return bytes;
}

}  // namespace te::text
