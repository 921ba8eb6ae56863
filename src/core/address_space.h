// What limits of a process (ulimit -v, ulimit -d) leave of its memory.
#pragma once

#include <cstdint>

namespace te {

/// Bytes that this process can still map; the largest int64_t without a limit.
int64_t free_address_space();

}  // namespace te
