// Capacity of experts (GShard, arXiv 2006.16668): of the selections of an expert, the ones with the largest
// probabilities are kept, the first ones among equals, as with Megatron-LM's moe_token_drop_policy probs.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"

namespace te::kernels {

struct LimitExperts {
  Tensor probs;              ///< fp32 [T, topk], not negative
  Tensor offsets, source;    ///< of expert_rows() with all selections and alignment 1
  int64_t capacity = 1;      ///< selections of each expert that are kept
  Tensor kept;               ///< i32 [T, topk]; out: the expert of each selection of `source`, or -1
  float* dropped = nullptr;  ///< += dropped share of the selections of `source`; may be null
};
void limit_experts(const Context& context, const LimitExperts& args);

/// Selections of each expert that are kept of `tokens` tokens' topk each; factor 0: all.
int64_t expert_capacity(int64_t tokens, int64_t topk, int64_t experts, double factor);

}  // namespace te::kernels
