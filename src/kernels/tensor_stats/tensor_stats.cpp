// Checks, dispatch and CPU reference of quantization statistics.
#include "kernels/tensor_stats/tensor_stats.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/scale_update/scale_formula.h"
#include "kernels/tensor_stats/tensor_stats_cuda.h"
#include "kernels/tensor_stats/tensor_stats_math.h"

namespace te::kernels {
namespace {

void check_args(const TensorStats& args) {
  check_high_precision("tensor_stats", "x", args.x);
  TE_CHECK(args.into != nullptr, "tensor_stats: `into` is required");
  check_dtype("tensor_stats", "scratch", args.scratch, DType::u8);
  TE_CHECK(args.scratch.numel() >= tensor_stats_scratch_bytes(),
           "tensor_stats: scratch has {} bytes, needs {}", args.scratch.numel(),
           tensor_stats_scratch_bytes());
  TE_CHECK(args.layout == ScaleLayout::none || is_fp8(args.format), "tensor_stats: {} is not FP8",
           dtype_name(args.format));
  TE_CHECK((args.layout == ScaleLayout::tensor) == (args.scale != nullptr),
           "tensor_stats: `scale` is required with ScaleLayout::tensor, and only then");
  if (!args.dequantized) return;
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  TE_CHECK(args.layout == ScaleLayout::none && args.counters != nullptr,
           "tensor_stats: `dequantized` requires ScaleLayout::none and `counters`");
  check_dtype("tensor_stats", "dequantized", args.dequantized, args.x.dtype);
  check_shape("tensor_stats", "dequantized", args.dequantized,
              args.columnwise ? Shape{cols, rows} : Shape{rows, cols});
}

/// Adds one group: computes its scale, then adds its values.
template <class T, class Q>
void add_tile(const TensorStats& args, const StatsTiles& tiles, const StatsTiles::Tile& tile,
              TensorSums& sums) {
  const auto at = [&](int64_t r, int64_t c) {
    return to_float(args.x.as<T>()[(tile.row + r) * tiles.cols + tile.col + c]);
  };
  float scale = args.scale != nullptr ? *args.scale : 1.0f;
  if (tiles.current_scaling) {
    float amax = 0.0f;
    for (int64_t r = 0; r < tile.height; ++r)
      for (int64_t c = 0; c < tile.width; ++c) amax = amax_of(amax, at(r, c));
    scale = group_scale(amax, fp8_max(args.format), std::ldexp(1.0f, -args.margin), args.power_of_two);
  }
  if (args.layout != ScaleLayout::none) add_scale(sums, scale);
  for (int64_t r = 0; r < tile.height; ++r)
    for (int64_t c = 0; c < tile.width; ++c) {
      const float x = at(r, c);
      if (!std::isfinite(x)) {
        ++sums.nonfinite;
        continue;
      }
      add_moments(sums, x);
      if (args.dequantized)
        add_error(
            sums, x,
            to_float(args.dequantized
                         .as<T>()[tiles.dequantized_index(args.columnwise, tile.row + r, tile.col + c)]));
      if (args.layout != ScaleLayout::none)
        add_quantized(sums, x, scale, to_float(from_float<Q>(x * scale)), fp8_max(args.format));
    }
  sums.count += static_cast<unsigned long long>(tile.height * tile.width);
}

void tensor_stats_cpu(const TensorStats& args) {
  const StatsTiles tiles = stats_tiles(args);
  std::vector<TensorSums> parts(static_cast<size_t>(kStatsParts), TensorSums{});
  visit_high_precision(args.x.dtype, [&](auto value) {
    visit_fp8(args.layout == ScaleLayout::none ? DType::e4m3 : args.format, [&](auto quantized) {
#pragma omp parallel for schedule(dynamic)
      for (int64_t part = 0; part < kStatsParts; ++part)
        for (int64_t index = part; index < tiles.count; index += kStatsParts)
          add_tile<decltype(value), decltype(quantized)>(args, tiles, tiles.tile(index),
                                                         parts[static_cast<size_t>(part)]);
    });
  });
  for (const TensorSums& part : parts) add_sums(*args.into, part);
  if (args.counters != nullptr) add_counters(*args.into, *args.counters);
}

void row_alignment_cpu(const RowAlignment& args) {
  const int64_t n = args.x.rows() / 2, cols = args.x.cols();
  visit_high_precision(args.x.dtype, [&](auto zero) {
    const auto* x = args.x.as<decltype(zero)>();
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) {
      double product = 0, gate = 0, up = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double a = to_float(x[i * cols + c]), b = to_float(x[(n + i) * cols + c]);
        product += a * b;
        gate += a * a;
        up += b * b;
      }
      args.out.as<float>()[i] =
          gate > 0 && up > 0 ? static_cast<float>(product / std::sqrt(gate * up)) : 0.0f;
    }
  });
}

}  // namespace

TensorSums merged(const TensorSums& a, const TensorSums& b) {
  TensorSums result = a;
  add_sums(result, b);
  return result;
}

namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

double finite_count(const TensorSums& sums) {
  return static_cast<double>(sums.count - sums.nonfinite);
}

}  // namespace

double sqnr_db(const TensorSums& sums) {
  if (sums.sum2 == 0.0) return kUndefined;
  return 10.0 * std::log10(sums.sum2 / sums.squared_error);
}

double dynamic_range(const TensorSums& sums) {
  return sums.smallest > 0 ? std::log2(static_cast<double>(sums.amax) / sums.smallest) : kUndefined;
}

// Central moments from raw moments, in FP64.
double kurtosis(const TensorSums& sums) {
  const double n = finite_count(sums);
  if (n == 0) return kUndefined;
  const double mean = sums.sum1 / n, m2 = sums.sum2 / n, m3 = sums.sum3 / n, m4 = sums.sum4 / n;
  const double variance = m2 - mean * mean;
  // Equal values have a variance of 0 up to rounding errors.
  if (!(variance > 1e-12 * m2)) return kUndefined;
  return (m4 - 4 * mean * m3 + 6 * mean * mean * m2 - 3 * mean * mean * mean * mean) / (variance * variance);
}

double saturated_fraction(const TensorSums& sums) {
  return sums.count > 0 ? static_cast<double>(sums.saturated) / static_cast<double>(sums.count) : kUndefined;
}

double underflow_fraction(const TensorSums& sums) {
  return sums.count > 0 ? static_cast<double>(sums.flushed) / static_cast<double>(sums.count) : kUndefined;
}

int64_t tensor_stats_scratch_bytes() {
  return kStatsParts * static_cast<int64_t>(sizeof(TensorSums));
}

void tensor_stats(const Context& context, const TensorStats& args) {
  check_args(args);
  TE_DISPATCH_CUDA(context, tensor_stats, args);
  tensor_stats_cpu(args);
}

void row_alignment(const Context& context, const RowAlignment& args) {
  check_high_precision("row_alignment", "x", args.x);
  TE_CHECK(args.x.rows() % 2 == 0, "row_alignment: x has {} rows, must have an even number", args.x.rows());
  check_tensor("row_alignment", "out", args.out, DType::f32, {args.x.rows() / 2});
  TE_DISPATCH_CUDA(context, row_alignment, args);
  row_alignment_cpu(args);
}

}  // namespace te::kernels
