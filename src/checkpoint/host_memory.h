// How much memory this host can still give.
#pragma once

#include <cstdint>

namespace te::checkpoint {

/// Bytes that can be had without swapping: the kernel's estimate (MemAvailable), or what the limit of this control
/// group leaves if that is less. Memory that page cache holds counts as free.
int64_t available_host_bytes();

}  // namespace te::checkpoint
