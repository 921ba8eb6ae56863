// Memory that the limits of this process (ulimit -v, ulimit -d) leave.
#pragma once

#include <cstdint>

namespace te {

/// Bytes that this process can still map; the largest int64_t if there is no limit.
int64_t free_address_space();

}  // namespace te
