// The sum of several ranks' addends, in the order of the ranks, and of what they are added to.
#pragma once

#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace te::parallel {

/// The addends of at most so many ranks: the GPUs of one host.
constexpr int kMaxSummedRanks = 32;
constexpr int kMaxAddends = kMaxSummedRanks + 1;

/// out = the sum of `parts`, added in FP32 one after another and rounded once to out's dtype (f32, bf16, f16), of which
/// they are; all of out's size, 16-byte aligned. `out` may be one of them. On a GPU only.
void sum_of_ranks(const Context& context, const std::vector<const void*>& parts, const Tensor& out);

}  // namespace te::parallel
