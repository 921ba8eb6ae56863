// The cuBLASLt side of gemm.h; the arguments have been checked.
#pragma once

#include "kernels/gemm/gemm.h"

namespace te::kernels {

/// Rows and columns of the GEMM; operands of more dimensions are seen as [rows, cols].
struct GemmSize {
  int64_t m, n, k;
};
GemmSize gemm_size(const Gemm& args);

namespace cuda {
void gemm(const Context& context, const Gemm& args);
/// True: launched. False: nothing was, because the kernel is not made for these rows, types, sizes or alignments.
bool gemm_few_rows(const Context& context, const Gemm& args);
/// out[r, c] = (accumulate ? out[r, c] : 0) + bias[c]: for the few GEMMs whose bias cuBLASLt cannot add.
void prepare_bias(const Context& context, const Tensor& out, const Tensor& bias, bool accumulate);
}  // namespace cuda

}  // namespace te::kernels
