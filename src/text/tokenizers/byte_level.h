// The printable alphabet of byte-level vocabularies (GPT-2): one character per byte, the byte itself if it is printable
// Latin-1, else a character from U+0100. Source: openai/gpt-2, encoder.py, bytes_to_unicode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace te::text {

/// The code point that represents a byte.
uint32_t byte_level_character(uint8_t byte);

/// The bytes that `token` represents; nullopt if one of its characters is not in the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace te::text
