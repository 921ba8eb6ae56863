// Small operations: residual add, scaling, bias gradient, dtype conversion, fills.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/random.h"
#include "core/tensor.h"

namespace te::kernels {

/// out = a + b: FP32 sum, rounded to the common dtype (fp32, bf16 or fp16). out may be a or b.
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);

/// x = x * factor, in place, rounded to its dtype (fp32, bf16 or fp16).
void scale(const Context& context, const Tensor& x, float factor);

/// x = cap tanh(x / cap), in place, rounded to its dtype (fp32, bf16 or fp16); cap is above 0.
void soft_cap(const Context& context, const Tensor& x, float cap);

/// dbias[c] += sum over rows of dy[r, c], in FP32 in a fixed order. dy is fp32, bf16 or fp16 [rows, cols]; dbias fp32
/// or bf16 (rounded once) [cols]; scratch fp32 [quantize_scratch_elements(rows, cols)].
void bias_gradient(const Context& context, const Tensor& dy, const Tensor& dbias, const Tensor& scratch);

/// out = x, converted between fp32, bf16 and fp16.
void cast(const Context& context, const Tensor& x, const Tensor& out);

/// x[i] = std * normal(seed, stream, first_index + i) for initial weights; x is fp32 [n]. Bitwise equal on all
/// backends.
void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 uint64_t first_index);

/// Position of a run of elements, taken from a rank's slice of a 2-D parameter, in the full parameter. The slice is a
/// region of local_cols columns whose upper left element is [global_row, global_col] of the full parameter. The run
/// starts first_local elements into the region (row-major), anywhere within a row.
struct ParameterRegion {
  int64_t local_cols = 0;
  int64_t first_local = 0;
  int64_t global_row = 0;
  int64_t global_col = 0;
  int64_t global_cols = 0;

  /// Flat index in the full parameter of element i of the run.
  TE_HOST_DEVICE uint64_t index(int64_t i) const {
    const int64_t local = first_local + i;
    if (local_cols == global_cols) return static_cast<uint64_t>(global_row * global_cols + local);
    // 32-bit division is several times faster than 64-bit division on a GPU.
    const int64_t row = local >> 32 == 0 ? static_cast<uint32_t>(local) / static_cast<uint32_t>(local_cols)
                                         : local / local_cols;
    return static_cast<uint64_t>((global_row + row) * global_cols + global_col + local - row * local_cols);
  }
};
/// x[i] = std * normal(seed, stream, region.index(i)), equal to the corresponding elements of a call for the full
/// parameter.
void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 const ParameterRegion& region);
void fill_value(const Context& context, const Tensor& x, float value);

/// Zeroes the granules of x whose flag has kGranuleZeroed; other granules keep their values.
struct ZeroGranules {
  Tensor x;           ///< fp32, bf16 or fp16 [n], n a multiple of a granule; aligned to 16 bytes
  Tensor flags;       ///< u8 [n / granule]
  int64_t count = 0;  ///< number of flagged granules; used only to report the work to the profiler
};
void zero_granules(const Context& context, const ZeroGranules& args);

}  // namespace te::kernels
