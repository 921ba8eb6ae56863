// The ranks over which amaxes are reduced, so that all of them quantize an operand with the same scale.
#pragma once

#include <array>
#include <vector>

#include "core/parameter_id.h"
#include "parallel/communicator.h"

namespace te::fp8 {

/// By the gradient group of the operand's weight: the amax is its maximum over one communicator after another. Empty:
/// one rank.
using AmaxRanks = std::array<std::vector<parallel::Communicator*>, kGradientGroups.size()>;

inline void add_ranks(AmaxRanks& ranks, GradientGroup group, parallel::Communicator& others) {
  if (others.size() > 1) ranks[static_cast<size_t>(group)].push_back(&others);
}

/// The maximum of the bits as integers. Non-negative floats, infinity and NaN are ordered like them; a maximum of
/// floats would drop NaN.
inline void reduce_amax(const Context& context, const AmaxRanks& ranks, GradientGroup group,
                        const Tensor& amax) {
  for (parallel::Communicator* const others : ranks[static_cast<size_t>(group)])
    others->all_reduce(context, {amax.data, DType::i32, amax.shape}, parallel::ReduceOp::max);
}

}  // namespace te::fp8
