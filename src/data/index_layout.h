// Constants of the .idx file for its reader and writer. Private to the data library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace te::data {

inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr size_t kIndexHeaderBytes = 34;  // magic, version, token type, sequence and document counts

}  // namespace te::data
