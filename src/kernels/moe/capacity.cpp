// Checks, dispatch and CPU reference of the capacity of experts.
#include "kernels/moe/capacity.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/common/checks.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels {
namespace {

void limit_experts_cpu(const LimitExperts& a) {
  const int64_t experts = a.offsets.numel() - 1;
  const auto *offsets = a.offsets.as<int32_t>(), *source = a.source.as<int32_t>();
  const auto* probs = a.probs.as<float>();
  auto* kept = a.kept.as<int32_t>();
  const int64_t capacity = a.factor > 0.0
                               ? std::min(a.capacity, expert_capacity(offsets[experts], experts, a.factor))
                               : a.capacity;
  int64_t dropped = 0;
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<int32_t> own(source + offsets[e], source + offsets[e + 1]);
    // In the order of the bits, as on the GPU: NaNs first.
    std::stable_sort(own.begin(), own.end(), [&](int32_t left, int32_t right) {
      return std::bit_cast<uint32_t>(probs[left]) > std::bit_cast<uint32_t>(probs[right]);
    });
    for (size_t i = 0; i < own.size(); ++i)
      kept[own[i]] = static_cast<int64_t>(i) < capacity ? static_cast<int32_t>(e) : -1;
    dropped += std::max<int64_t>(static_cast<int64_t>(own.size()) - capacity, 0);
  }
  if (a.dropped == nullptr) return;
  a.dropped[0] += static_cast<float>(dropped);
  a.dropped[1] += static_cast<float>(offsets[experts]);
}

}  // namespace

void limit_experts(const Context& context, const LimitExperts& a) {
  const char* op = "limit_experts";
  check_dtype(op, "probs", a.probs, DType::f32);
  for (const Tensor& tensor : {a.offsets, a.source, a.kept}) check_dtype(op, "rows", tensor, DType::i32);
  check_shape(op, "kept", a.kept, a.probs.shape);
  TE_CHECK(a.source.numel() >= a.probs.numel() && a.capacity > 0, "{}: {} rows of {} selections, capacity {}",
           op, a.source.numel(), a.probs.numel(), a.capacity);
  TE_DISPATCH_CUDA(context, limit_experts, a);
  limit_experts_cpu(a);
}

}  // namespace te::kernels
