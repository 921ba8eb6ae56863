// Sum of several ranks' addends in rank order, for reductions with copy engines.
#pragma once

#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::parallel {

/// Largest number of ranks: at least as many as a host has GPUs.
constexpr int kMaxSummedRanks = 32;
constexpr int kMaxAddends = kMaxSummedRanks + 1;

/// out = sum of `parts`, added in FP32 in their order and rounded once to the dtype of `out` (f32, bf16, f16). All
/// parts have the size and dtype of `out` and are 16-byte aligned; `out` may be one of them. GPU only.
void sum_of_ranks(const Context& context, const std::vector<const void*>& parts, const Tensor& out);

}  // namespace te::parallel
