// How fast a GPU's memory can be read at most.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace te {

/// Bytes per second of the device's memory by its clock and the width of its bus; 0 on the CPU. Kernels that copy reach
/// about nine tenths of it.
int64_t memory_bandwidth(const Context& context);

}  // namespace te
