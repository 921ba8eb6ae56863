// The printable alphabet of byte-level vocabularies (GPT-2): one character for each byte, itself where it is
// printable Latin-1, else one from U+0100 on. Source: openai/gpt-2, encoder.py, bytes_to_unicode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace te::text {

/// The code point that stands for a byte.
uint32_t byte_level_character(uint8_t byte);

/// The bytes that `token` stands for; nothing if it has a character that stands for none.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace te::text
