// Threshold and scale of dropout, shared by the CPU reference and the CUDA kernel, which must agree bitwise.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/device.h"
#include "kernels/dropout/dropout.h"

namespace te::kernels {

struct DropoutRule {
  uint32_t threshold = 0;    ///< keep when word >= threshold: ceil(probability * 2^32), exact in FP64
  float scale = 1.0f;        ///< 1 / (1 - probability), rounded once
  uint64_t first_index = 0;  ///< index of element 0 in the sequence of random words
};

/// Rows are dense, so index i of dropout.h is first_row * cols plus the flat element number.
inline DropoutRule dropout_rule(const Dropout& args) {
  return {static_cast<uint32_t>(std::ceil(static_cast<double>(args.probability) * 4294967296.0)),
          1.0f / (1.0f - args.probability), args.first_row * static_cast<uint64_t>(args.x.cols())};
}

#ifdef TE_WITH_CUDA
namespace cuda {
void dropout(const Context& context, const Dropout& args);
}
#endif

}  // namespace te::kernels
