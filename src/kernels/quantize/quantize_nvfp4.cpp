// Checks, dispatch and CPU reference of quantization to NVFP4.
#include "kernels/quantize/quantize_nvfp4.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/fp8_cpu.h"
#include "kernels/quantize/nvfp4_formula.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels {
namespace {

constexpr int kGroup = static_cast<int>(kNvfp4Group);

void check_args(const QuantizeNvfp4& args) {
  check_grad("quantize_nvfp4", "x", args.x);
  TE_CHECK(args.rowwise || args.columnwise, "quantize_nvfp4: rowwise or columnwise output is required");
  TE_CHECK(!args.blocks || !args.hadamard, "quantize_nvfp4: blocks have no Hadamard transform");
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const auto check = [&](const char* name, const Matrix& output, Shape shape) {
    if (!output) return;
    const bool native = output.layout == ScaleLayout::nvfp4;
    TE_CHECK(native || output.layout == ScaleLayout::factor, "quantize_nvfp4: {} must have a factor", name);
    check_tensor("quantize_nvfp4", name, output.values, native ? DType::e2m1 : args.x.dtype, shape);
    check_tensor("quantize_nvfp4", "factor", output.tensor_factor(), DType::f32, {1});
    if (!native) return;
    TE_CHECK(!args.restore, "quantize_nvfp4: codes are not restored");
    TE_CHECK(shape[1] % 2 == 0, "quantize_nvfp4: {} has {} columns, must have an even number", name,
             shape[1]);
    check_tensor("quantize_nvfp4", "scales", output.scales, scale_dtype(output.layout),
                 scale_shape(output.layout, shape[0], shape[1]));
  };
  check("rowwise", args.rowwise, {rows, cols});
  check("columnwise", args.columnwise, {cols, rows});
}

/// Hadamard transform of 16 values. The order of the sums is that of the GPU.
void transform(float (&v)[kGroup]) {
  for (int h = 1; h < kGroup; h *= 2) {
    for (int i = 0; i < kGroup; ++i) {
      if ((i & h) != 0) continue;
      const float a = v[i], b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
  for (float& value : v) value *= 0.25f;
}

/// One layout of the output, whose value (r, c) before quantization is value(r, c).
template <class T, class Value>
struct Layout {
  const QuantizeNvfp4& args;
  const Matrix& output;
  bool hadamard, columnwise;
  const Value& value;
  int64_t rows = output.rows(), cols = output.cols();
  bool native = output.layout == ScaleLayout::nvfp4;

  /// Loads a group; returns its number of values.
  int load(int64_t r, int64_t first, float (&v)[kGroup]) const {
    const int count = static_cast<int>(std::min<int64_t>(kGroup, cols - first));
    for (int i = 0; i < count; ++i) v[i] = value(r, first + i);
    if (!hadamard || count < kGroup) return count;
    for (int i = 0; i < kGroup; ++i) v[i] *= nvfp4_sign(i);
    transform(v);
    for (float& y : v) y = to_float(from_float<T>(y));
    return count;
  }
  static uint32_t amax_of(const float* v, int count) {
    uint32_t amax = 0;
    for (int i = 0; i < count; ++i) amax = std::max(amax, magnitude_without_nan(v[i]));
    return amax;
  }
  void find_amax() const {
    uint32_t amax = 0;
#pragma omp parallel for reduction(max : amax)
    for (int64_t r = 0; r < rows; ++r) {
      float v[kGroup];
      for (int64_t first = 0; first < cols; first += kGroup) {
        const int count = load(r, first, v);
        amax = std::max(amax, amax_of(v, count));
      }
    }
    *output.tensor_factor().as<float>() = std::bit_cast<float>(amax);
  }
  uint32_t block_amax(int64_t top, int64_t end, int64_t first) const {
    uint32_t amax = 0;
    float v[kGroup];
    for (int64_t r = top; r < end; ++r) amax = std::max(amax, amax_of(v, load(r, first, v)));
    return amax;
  }
  struct Counts {
    unsigned long long saturated = 0, flushed = 0;
  };
  /// Quantizes a group of row r. `block`: the amax of its block, if args.blocks.
  Counts write_group(int64_t r, int64_t first, const Nvfp4Tensor& tensor, float factor,
                     uint32_t block) const {
    float v[kGroup];
    Counts counts;
    const int count = load(r, first, v);
    const Nvfp4Group group = nvfp4_group(args.blocks ? block : amax_of(v, count), tensor);
    if (native) {
      const bool nan = std::any_of(v, v + count, [](float x) { return std::isnan(x); });
      write_scale(r, first, nan ? NAN : group.scale);
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t index = static_cast<uint64_t>(r * cols + first + i);
      const uint32_t word = args.stochastic ? nvfp4_random(args.seed, args.stream, columnwise, index) : 0;
      const Nvfp4Value result = nvfp4_value(v[i], group, args.stochastic ? &word : nullptr);
      v[i] = native ? result.code : result.value;
      counts.saturated += result.saturated ? 1u : 0u;
      counts.flushed += result.flushed ? 1u : 0u;
    }
    if (args.restore) restore(v, count, factor);
    if (native)
      write_codes(r * cols + first, v, count);
    else
      for (int i = 0; i < count; ++i) output.values.as<T>()[r * cols + first + i] = from_float<T>(v[i]);
    return counts;
  }
  void write_scale(int64_t r, int64_t first, float scale) const {
    const int64_t groups = (cols + kGroup - 1) / kGroup;
    output.scales.as<uint8_t>()[mx_scale_index(r, first / kGroup, groups)] = to_e4m3(scale).bits;
  }
  void write_codes(int64_t at, const float (&v)[kGroup], int count) const {
    auto* const bytes = output.values.as<uint8_t>() + at / 2;
    for (int i = 0; i < count; i += 2)
      bytes[i / 2] = static_cast<uint8_t>(e2m1_code(v[i]) | e2m1_code(v[i + 1]) << 4);
  }
  /// Quantizes with the tensor's amax, which the factor replaces.
  void write(Fp8Counters* counters) const {
    if (native) std::memset(output.scales.data, 0, output.scales.bytes());
    const float amax = *output.tensor_factor().as<float>(), factor = nvfp4_factor(amax, args.margin);
    const Nvfp4Tensor tensor = nvfp4_tensor(amax, args.margin);
    unsigned long long saturated = 0, flushed = 0;
#pragma omp parallel for reduction(+ : saturated, flushed)
    for (int64_t top = 0; top < rows; top += kGroup) {
      const int64_t end = std::min(rows, top + kGroup);
      for (int64_t first = 0; first < cols; first += kGroup) {
        const uint32_t block = args.blocks ? block_amax(top, end, first) : 0;
        for (int64_t r = top; r < end; ++r) {
          const Counts counts_of_group = write_group(r, first, tensor, factor, block);
          saturated += counts_of_group.saturated;
          flushed += counts_of_group.flushed;
        }
      }
    }
    *output.tensor_factor().as<float>() = factor;
    if (counters == nullptr) return;
    counters->saturated += saturated;
    counters->flushed += flushed;
    counters->total += static_cast<unsigned long long>(rows * cols);
  }
  void restore(float (&v)[kGroup], int count, float factor) const {
    for (int i = 0; i < count; ++i) v[i] *= factor;
    if (!hadamard || count < kGroup) return;
    transform(v);
    for (int i = 0; i < kGroup; ++i) v[i] *= nvfp4_sign(i);
  }
};

void quantize_nvfp4_cpu(const Context& context, const QuantizeNvfp4& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  visit_grad(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* x = args.x.as<T>();
    const auto by_rows = [x, cols](int64_t r, int64_t c) { return to_float(x[r * cols + c]); };
    const auto by_columns = [x, cols](int64_t r, int64_t c) { return to_float(x[c * cols + r]); };
    const auto write = [&](const Matrix& output, const auto& value, bool columnwise, bool counts) {
      if (!output) return;
      const Layout<T, std::remove_cvref_t<decltype(value)>> layout{args, output, args.hadamard && columnwise,
                                                                   columnwise, value};
      layout.find_amax();
      if (args.all_reduce_amax) args.all_reduce_amax(context, output.tensor_factor());
      layout.write(counts ? args.counters : nullptr);
    };
    write(args.rowwise, by_rows, false, true);
    write(args.columnwise, by_columns, true, !args.rowwise);
    write_fp8_output_cpu(context, {.amax = args.amax}, rows, cols, by_rows);
  });
}

}  // namespace

void quantize_nvfp4(const Context& context, const QuantizeNvfp4& args) {
  check_args(args);
  TE_DISPATCH_CUDA(context, quantize_nvfp4, args);
  quantize_nvfp4_cpu(context, args);
}

}  // namespace te::kernels
