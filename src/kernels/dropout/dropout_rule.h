// Threshold and scale of dropout, shared by the CPU reference and the CUDA kernel, which must agree bitwise.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/device.h"
#include "core/random.h"
#include "kernels/dropout/dropout.h"

namespace te::kernels {

struct DropoutRule {
  uint32_t threshold = 0;    ///< keep when word >= threshold: ceil(probability * 2^32), exact in FP64
  float scale = 1.0f;        ///< 1 / (1 - probability), rounded once
  uint64_t first_index = 0;  ///< index of element 0 in the sequence of random words
  int64_t cols = 0;          ///< of x
  int64_t skip = 0;          ///< indices between two rows: of other columns than x's
};

/// Index i of dropout.h is first_index plus the flat element number, plus `skip` per row.
inline DropoutRule dropout_rule(const Dropout& args) {
  return {static_cast<uint32_t>(std::ceil(static_cast<double>(args.probability) * 4294967296.0)),
          1.0f / (1.0f - args.probability),
          args.first_row * static_cast<uint64_t>(args.all_cols > 0 ? args.all_cols : args.x.cols()) +
              static_cast<uint64_t>(args.first_col),
          args.x.cols(), args.all_cols > 0 ? args.all_cols - args.x.cols() : 0};
}

/// Uniform in [-1, 1), exact.
TE_HOST_DEVICE float signed_uniform(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-23f - 1.0f;
}

#ifdef TE_WITH_CUDA
namespace cuda {
void dropout(const Context& context, const Dropout& args);
void row_numbers(const Context& context, const RowNumbers& args);
void uniform_noise(const Context& context, const UniformNoise& args);
}  // namespace cuda
#endif

}  // namespace te::kernels
