// Operands of the CPU references in FP32.
#pragma once

#include <vector>

#include "core/float_types.h"
#include "core/tensor.h"

namespace te::kernels {

/// Values of a tensor in FP32: the tensor itself, or a copy in the buffer.
inline const float* widen_moe(const Tensor& tensor, std::vector<float>& buffer) {
  if (tensor.dtype == DType::f32) return tensor.as<float>();
  const int64_t count = tensor.numel();
  if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(static_cast<size_t>(count));
  float* const out = buffer.data();
  const auto convert = [&](auto zero) {
    const auto* in = tensor.as<decltype(zero)>();
#pragma omp parallel for
    for (int64_t i = 0; i < count; ++i) out[i] = to_float(in[i]);
  };
  if (!visit_high_precision(tensor.dtype, convert)) visit_fp8(tensor.dtype, convert);
  return out;
}

}  // namespace te::kernels
