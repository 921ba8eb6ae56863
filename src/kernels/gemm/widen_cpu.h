// Operands of the CPU references of GEMMs in FP32, which is exact for BF16 and FP8.
#pragma once

#include <vector>

#include "kernels/gemm/matrix.h"

namespace te::kernels {

/// Values of a tensor in FP32: the tensor itself, or a copy in the buffer.
const float* widen(const Tensor& tensor, std::vector<float>& buffer);

/// Values with the inverse scales of vectors or blocks applied, which multiply within the sum over k.
const float* widen(const Matrix& matrix, std::vector<float>& buffer);

}  // namespace te::kernels
