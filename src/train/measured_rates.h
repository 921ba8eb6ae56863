// Rates of a GPU model that core/gpu_models.h does not have.
#pragma once

#include <optional>

#include "core/device.h"
#include "core/gpu_models.h"

namespace te::train {

/// How much to measure: GEMMs of `size` x `size` matrices, and copies of `bytes`. Larger than the L2 cache.
struct RateProblem {
  int64_t size = 4096;
  int64_t bytes = int64_t{128} << 20;
};

/// Measures GEMMs in BF16 and, if the GPU has it, FP8, and the memory bandwidth, in about 0.1 s. Needs temporary memory
/// of 2 * bytes; empty if so much is not free.
std::optional<GpuModel> measured_rates(const Context& context, const RateProblem& problem = {});

}  // namespace te::train
