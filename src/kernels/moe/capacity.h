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
  int64_t capacity = 1;      ///< selections of each expert that are kept, at most
  double factor = 0.0;       ///< of the balanced load of the selections in `source`, another bound; 0: none
  Tensor kept;               ///< i32 [T, topk]; out: the expert of each selection of `source`, or -1
  float* dropped = nullptr;  ///< [2]: += dropped selections and all of `source`; may be null
};
void limit_experts(const Context& context, const LimitExperts& args);

/// Selections of each expert that are kept of `selections`, at least 1: the balanced load times the factor, rounded up.
constexpr int64_t expert_capacity(int64_t selections, int64_t experts, double factor) {
  const double load = factor * (static_cast<double>(selections) / static_cast<double>(experts));
  const auto whole = static_cast<int64_t>(load);
  const int64_t up = static_cast<double>(whole) < load ? whole + 1 : whole;
  return up < 1 ? 1 : up;
}

}  // namespace te::kernels
