// cuBLASLt side of gemm.h; callers have checked the arguments.
#pragma once

#include "kernels/gemm/gemm.h"

namespace te::kernels {

/// Rows, columns and depth of the GEMM; operands of more dimensions are viewed as [rows, cols].
struct GemmSize {
  int64_t m, n, k;
};
GemmSize gemm_size(const Gemm& args);

namespace cuda {
void gemm(const Context& context, const Gemm& args);
GemmKernels gemm_kernels(const Context& context, const Gemm& args);
/// Whether the kernel for few rows supports these rows, dtypes, sizes and alignments.
bool fits_few_rows(const Gemm& args);
/// Returns false, without launching anything, unless fits_few_rows().
bool gemm_few_rows(const Context& context, const Gemm& args);
/// out = {a * b, accumulate ? 1 : 0}: alpha and beta of a GEMM with factors a and b.
void prepare_coefficients(const Context& context, const Tensor& a, const Tensor& b, bool accumulate,
                          float* out);
/// out[r, c] = (accumulate ? out[r, c] : 0) + bias[c], for GEMMs whose bias cuBLASLt cannot add.
void prepare_bias(const Context& context, const Tensor& out, const Tensor& bias, bool accumulate);
}  // namespace cuda

}  // namespace te::kernels
