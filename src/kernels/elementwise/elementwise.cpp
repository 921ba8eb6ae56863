// Checks, dispatch and CPU reference of residual add, scaling, bias gradient, dtype conversion and fills.
#include "kernels/elementwise/elementwise.h"

#include <algorithm>

#include "core/float_types.h"
#include "core/random.h"
#include "kernels/common/checks.h"
#include "kernels/common/column_sum_cpu.h"
#include "kernels/common/granule.h"
#include "kernels/common/soft_cap.h"
#include "kernels/quantize/quantize.h"

namespace te::kernels {

namespace cuda {
void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out);
void scale(const Context& context, const Tensor& x, float factor);
void soft_cap(const Context& context, const Tensor& x, float cap);
void bias_gradient(const Context& context, const Tensor& dy, const Tensor& dbias, const Tensor& scratch);
void cast(const Context& context, const Tensor& x, const Tensor& out);
void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 uint64_t first_index);
void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 const ParameterRegion& region);
void fill_value(const Context& context, const Tensor& x, float value);
void zero_granules(const Context& context, const ZeroGranules& args);
}  // namespace cuda

namespace {

/// out = function(x) of each element. `out` may be x.
template <class Function>
void map_cpu(const Tensor& x, const Tensor& out, Function&& function) {
  visit_high_precision(x.dtype, [&](auto from_zero) {
    visit_high_precision(out.dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      const auto* from = x.as<decltype(from_zero)>();
      To* const to = out.as<To>();
      const int64_t count = x.numel();
#pragma omp parallel for
      for (int64_t i = 0; i < count; ++i) to[i] = from_float<To>(function(to_float(from[i])));
    });
  });
}

}  // namespace

void add(const Context& context, const Tensor& a, const Tensor& b, const Tensor& out) {
  check_high_precision("add", "a", a);
  check_dtype("add", "b", b, a.dtype);
  check_dtype("add", "out", out, a.dtype);
  TE_CHECK(a.numel() == b.numel() && a.numel() == out.numel(),
           "add: a, b and out must have equally many elements, not {}, {} and {}", a.numel(), b.numel(),
           out.numel());
  TE_DISPATCH_CUDA(context, add, a, b, out);
  visit_high_precision(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = a.as<T>(), *y = b.as<T>();
    T* const sum = out.as<T>();
    const int64_t count = a.numel();
#pragma omp parallel for
    for (int64_t i = 0; i < count; ++i) sum[i] = from_float<T>(to_float(x[i]) + to_float(y[i]));
  });
}

void scale(const Context& context, const Tensor& x, float factor) {
  check_high_precision("scale", "x", x);
  TE_DISPATCH_CUDA(context, scale, x, factor);
  map_cpu(x, x, [factor](float value) { return value * factor; });
}

void soft_cap(const Context& context, const Tensor& x, float cap) {
  check_high_precision("soft_cap", "x", x);
  TE_CHECK(cap > 0.0f, "soft_cap: cap {} must be above 0", cap);
  TE_DISPATCH_CUDA(context, soft_cap, x, cap);
  map_cpu(x, x, [cap](float value) { return soft_cap(value, cap); });
}

void bias_gradient(const Context& context, const Tensor& dy, const Tensor& dbias, const Tensor& scratch) {
  check_high_precision("bias_gradient", "dy", dy);
  const int64_t rows = dy.rows(), cols = dy.cols();
  check_column_sums("bias_gradient", dbias, scratch, rows, cols);
  TE_DISPATCH_CUDA(context, bias_gradient, dy, dbias, scratch);
  visit_high_precision(dy.dtype, [&](auto zero) {
    const auto* x = dy.as<decltype(zero)>();
    add_column_sums_cpu(rows, cols, dbias,
                        [x, cols](int64_t r, int64_t c) { return to_float(x[r * cols + c]); });
  });
}

void cast(const Context& context, const Tensor& x, const Tensor& out) {
  check_high_precision("cast", "x", x);
  check_high_precision("cast", "out", out);
  TE_CHECK(x.numel() == out.numel(), "cast: x has {} elements, but out has {}", x.numel(), out.numel());
  TE_DISPATCH_CUDA(context, cast, x, out);
  map_cpu(x, out, [](float value) { return value; });
}

void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 uint64_t first_index) {
  check_dtype("fill_normal", "x", x, DType::f32);
  TE_DISPATCH_CUDA(context, fill_normal, x, std, seed, stream, first_index);
  float* const values = x.as<float>();
  const int64_t count = x.numel();
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i)
    values[i] = std * normal(seed, stream, first_index + static_cast<uint64_t>(i));
}

void fill_normal(const Context& context, const Tensor& x, float std, uint64_t seed, uint64_t stream,
                 const ParameterRegion& region) {
  if (x.numel() == 0) return;  // the rank's slice is empty
  check_dtype("fill_normal", "x", x, DType::f32);
  TE_CHECK(region.local_cols > 0 && region.first_local >= 0 && region.global_row >= 0 &&
               region.global_col >= 0 && region.global_col + region.local_cols <= region.global_cols,
           "fill_normal: invalid region: columns {}+{} of {}, row {}, element {}", region.global_col,
           region.local_cols, region.global_cols, region.global_row, region.first_local);
  TE_DISPATCH_CUDA(context, fill_normal, x, std, seed, stream, region);
  float* const values = x.as<float>();
  const int64_t count = x.numel();
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) values[i] = std * normal(seed, stream, region.index(i));
}

void fill_value(const Context& context, const Tensor& x, float value) {
  check_high_precision("fill_value", "x", x);
  TE_DISPATCH_CUDA(context, fill_value, x, value);
  visit_high_precision(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill(x.as<T>(), x.as<T>() + x.numel(), from_float<T>(value));
  });
}

void zero_granules(const Context& context, const ZeroGranules& args) {
  const int64_t granules = args.x.numel() / kAdamWGranule;
  check_high_precision("zero_granules", "x", args.x);
  check_shape("zero_granules", "x", args.x, {granules * kAdamWGranule});
  TE_CHECK(reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0, "zero_granules: x must be 16-byte aligned");
  check_tensor("zero_granules", "flags", args.flags, DType::u8, {granules});
  TE_DISPATCH_CUDA(context, zero_granules, args);
  const auto* flags = args.flags.as<uint8_t>();
  visit_high_precision(args.x.dtype, [&](auto zero) {
    auto* const x = args.x.as<decltype(zero)>();
#pragma omp parallel for
    for (int64_t granule = 0; granule < granules; ++granule) {
      if ((flags[granule] & kGranuleZeroed) != 0)
        std::fill_n(x + granule * kAdamWGranule, kAdamWGranule, zero);
    }
  });
}

}  // namespace te::kernels
