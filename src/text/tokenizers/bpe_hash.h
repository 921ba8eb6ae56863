// Hash functions of the tables of BpeModel.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace te::text {

inline uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

inline uint64_t hash_key(uint64_t key) {
  key *= 0x9E3779B97F4A7C15U;
  return key ^ key >> 32;
}

/// `text` must not be empty.
inline uint64_t hash_text(std::string_view text) {
  uint64_t hash = text.size();
  while (text.size() >= 8) {
    uint64_t block = 0;
    std::memcpy(&block, text.data(), 8);
    hash = hash_key(hash ^ block);
    text.remove_prefix(8);
  }
  uint64_t block = 0;
  std::memcpy(&block, text.data(), text.size());
  return hash_key(hash_key(hash ^ block));
}

}  // namespace te::text
