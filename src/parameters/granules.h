// The granule by which parameters are aligned in the flat buffers of a ParameterStore.
#pragma once

#include <cstdint>

#include "kernels/common/granule.h"

namespace te::parameters {

constexpr int64_t kGranule = kernels::kAdamWGranule;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace te::parameters
