// Peak bandwidth of a GPU's memory.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace te {

/// Peak bandwidth of the device's memory in bytes per second, from its clock and bus width; 0 on the CPU. Copy kernels
/// reach most of it, not all.
int64_t memory_bandwidth(const Context& context);

}  // namespace te
