// Checks, dispatch and CPU reference of GEMMs.
//
// The reference widens the operands to FP32 (exact for BF16 and FP8), multiplies tiles of the result with OpenBLAS and
// rounds each tile once. Tiles have a fixed size and each is computed by one thread, so the result does not depend on
// the number of threads.
#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/sgemm_cpu.h"
#include "kernels/gemm/widen_cpu.h"

namespace te::kernels {
namespace {

constexpr int64_t kTileRows = 128;
constexpr int64_t kTileCols = 256;
constexpr int64_t kFp8Multiple = 16;  ///< of k with scales in tiles kMxGroup

void check_scales(const char* name, const Matrix& matrix) {
  TE_CHECK(matrix.layout != ScaleLayout::none && matrix.scales, "gemm: FP8 operand {} has no scales", name);
  check_dtype("gemm", "scales", matrix.scales, scale_dtype(matrix.layout));
  const int64_t count = scale_shape(matrix.layout, matrix.rows(), matrix.cols()).numel();
  TE_CHECK(matrix.scales.numel() == count, "gemm: operand {} {} has {} scales, must have {}", name,
           matrix.values.shape.str(), matrix.scales.numel(), count);
  const int64_t stride = matrix.scale_stride;
  TE_CHECK(stride == 0 || (matrix.layout == ScaleLayout::vectors && stride >= matrix.rows()),
           "gemm: scales of operand {} {} have the invalid stride {}", name, matrix.values.shape.str(),
           stride);
  TE_CHECK((matrix.layout == ScaleLayout::nvfp4) == static_cast<bool>(matrix.factor),
           "gemm: operand {} has a factor, or scales of NVFP4, but not both", name);
}

// Vectors combine with vectors (wgrad) or blocks (a weight).
void check_layouts(ScaleLayout a, ScaleLayout b) {
  const auto along_k = [](ScaleLayout layout) {
    return layout == ScaleLayout::vectors || layout == ScaleLayout::blocks;
  };
  const bool pair = along_k(a) && along_k(b) && (a == ScaleLayout::vectors || b == ScaleLayout::vectors);
  TE_CHECK(a == b ? a != ScaleLayout::blocks : pair, "gemm: the scale layouts of a and b do not go together");
}

void check_operands(const Gemm& args) {
  TE_CHECK(args.a && args.b && args.out, "gemm: tensors a, b and out are required");
  if (is_quantized(args.a.dtype()) || is_quantized(args.b.dtype())) {
    TE_CHECK(is_quantized(args.a.dtype()) && is_quantized(args.b.dtype()),
             "gemm: a is {} and b is {}, but both or neither must be FP8", dtype_name(args.a.dtype()),
             dtype_name(args.b.dtype()));
    TE_CHECK(args.a.dtype() != DType::e5m2 || args.b.dtype() != DType::e5m2,
             "gemm: a and b are both E5M2; one must be E4M3");
    TE_CHECK(!args.trans_a && args.trans_b, "gemm: FP8 operands must be a [m, k] and b [n, k] with trans_b");
    check_scales("a", args.a);
    check_scales("b", args.b);
    check_layouts(args.a.layout, args.b.layout);
    for (const Matrix* matrix : {&args.a, &args.b})
      TE_CHECK((matrix->dtype() == DType::e2m1) == (matrix->layout == ScaleLayout::nvfp4),
               "gemm: only E2M1 operands have scales of NVFP4");
  } else {
    check_high_precision("gemm", "a", args.a.values);
    check_dtype("gemm", "b", args.b.values, args.a.dtype());
    const ScaleLayout layout = args.a.layout;
    TE_CHECK(layout == args.b.layout && (layout == ScaleLayout::none || layout == ScaleLayout::factor),
             "gemm: high-precision operands can only have factors, and only both of them");
    TE_CHECK(static_cast<bool>(args.a.scales) == (layout == ScaleLayout::factor) &&
                 static_cast<bool>(args.b.scales) == (layout == ScaleLayout::factor),
             "gemm: operands with factors, and only these, have scales");
  }
  check_high_precision("gemm", "out", args.out);
}

void check_args(const Gemm& args) {
  check_operands(args);
  const auto [m, n, k] = gemm_size(args);
  const int64_t b_k = args.trans_b ? args.b.cols() : args.b.rows();
  TE_CHECK(b_k == k, "gemm: a {} and b {} disagree on k: {} and {}", args.a.values.shape.str(),
           args.b.values.shape.str(), k, b_k);
  TE_CHECK(args.out.rows() == m && args.out.cols() == n, "gemm: out has shape {}, must be [{}, {}]",
           args.out.shape.str(), m, n);
  if (args.bias) check_tensor("gemm", "bias", args.bias, args.out.dtype, {n});
  if (is_quantized(args.a.dtype())) {
    TE_CHECK(m % kFp8Multiple == 0 || has_few_rows(args),
             "gemm: rows of FP8 tensor a {} must be a multiple of 16", args.a.values.shape.str());
    TE_CHECK(n % kFp8Multiple == 0, "gemm: rows of FP8 tensor b {} must be a multiple of 16",
             args.b.values.shape.str());
    const int64_t multiple = scale_dtype(args.a.layout) == DType::u8 ? kMxGroup : kFp8Multiple;
    TE_CHECK(k % multiple == 0, "gemm: columns of FP8 tensor a {} must be a multiple of {}",
             args.a.values.shape.str(), multiple);
  }
}

/// A GEMM of FP32 matrices, with the data that its tiles need.
struct GemmTiles {
  const Gemm& args;
  GemmSize size;
  const float* a;
  const float* b;
  float scale;  ///< of ScaleLayout::tensor, and factors, otherwise 1

  void multiply(int64_t row, int64_t col, int64_t rows, int64_t cols, float beta, float* c,
                int64_t ldc) const {
    const int64_t lda = args.trans_a ? size.m : size.k, ldb = args.trans_b ? size.k : size.n;
    const float* a_tile = args.trans_a ? a + row : a + row * lda;
    const float* b_tile = args.trans_b ? b + col * ldb : b + col;
    sgemm_one_thread(args.trans_a, args.trans_b, rows, cols, size.k, scale, a_tile, lda, b_tile, ldb, beta, c,
                     ldc);
  }

  /// ScaleLayout::rows: multiplies sums [rows, cols] by the scales of their rows of a and b.
  void scale_sums(int64_t row, int64_t col, int64_t rows, int64_t cols, float* sums) const {
    const float *of_a = args.a.scales.as<float>() + row, *of_b = args.b.scales.as<float>() + col;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) sums[r * cols + c] = sums[r * cols + c] * of_a[r] * of_b[c];
  }
  bool scaled_by_rows() const { return args.a.layout == ScaleLayout::rows; }

  void fp32_tile(int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    float* out = args.out.as<float>() + row * size.n + col;
    if (scaled_by_rows()) {
      static thread_local std::vector<float> tile(kTileRows * kTileCols);
      multiply(row, col, rows, cols, 0.0f, tile.data(), cols);
      scale_sums(row, col, rows, cols, tile.data());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          out[r * size.n + c] = tile[r * cols + c] + (args.accumulate ? out[r * size.n + c] : 0.0f);
    } else {
      multiply(row, col, rows, cols, args.accumulate ? 1.0f : 0.0f, out, size.n);
    }
    if (!args.bias) return;
    const float* bias = args.bias.as<float>() + col;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) out[r * size.n + c] += bias[c];
  }

  /// T: dtype of the result, BF16 or FP16.
  template <class T>
  void rounded_tile(int64_t row, int64_t col, int64_t rows, int64_t cols) const {
    static thread_local std::vector<float> tile(kTileRows * kTileCols);
    multiply(row, col, rows, cols, 0.0f, tile.data(), cols);
    if (scaled_by_rows()) scale_sums(row, col, rows, cols, tile.data());
    const T* bias = args.bias ? args.bias.as<T>() + col : nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      float* sum = tile.data() + r * cols;
      T* out = args.out.as<T>() + (row + r) * size.n + col;
      if (args.accumulate)
        for (int64_t c = 0; c < cols; ++c) sum[c] += to_float(out[c]);
      if (bias != nullptr)
        for (int64_t c = 0; c < cols; ++c) sum[c] += to_float(bias[c]);
      for (int64_t c = 0; c < cols; ++c) out[c] = from_float<T>(sum[c]);
    }
  }
};

void gemm_cpu(const Gemm& args) {
  require_openblas_memory();
  // Buffers live as long as the thread, because a training step repeats the same sizes.
  static thread_local std::vector<float> a_buffer, b_buffer;
  const GemmSize size = gemm_size(args);
  const bool whole = args.a.layout == ScaleLayout::tensor || args.a.has_factor();
  const float scale =
      whole ? *args.a.tensor_factor().as<float>() * *args.b.tensor_factor().as<float>() : 1.0f;
  const GemmTiles tiles{args, size, widen(args.a, a_buffer), widen(args.b, b_buffer), scale};
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int64_t row = 0; row < size.m; row += kTileRows) {
    for (int64_t col = 0; col < size.n; col += kTileCols) {
      const int64_t rows = std::min(kTileRows, size.m - row), cols = std::min(kTileCols, size.n - col);
      if (args.out.dtype == DType::f32) {
        tiles.fp32_tile(row, col, rows, cols);
      } else {
        visit_high_precision(args.out.dtype,
                             [&](auto zero) { tiles.rounded_tile<decltype(zero)>(row, col, rows, cols); });
      }
    }
  }
}

}  // namespace

GemmSize gemm_size(const Gemm& args) {
  return {args.trans_a ? args.a.cols() : args.a.rows(), args.trans_b ? args.b.rows() : args.b.cols(),
          args.trans_a ? args.a.rows() : args.a.cols()};
}

bool has_few_rows(const Gemm& args) {
  const DType dtype = args.a.dtype();
  return args.a.layout != ScaleLayout::factor && args.a.layout != ScaleLayout::mx && !args.trans_a &&
         args.trans_b && !args.accumulate && args.a.rows() <= kFewRows &&
         (dtype == DType::bf16 || dtype == DType::e4m3) && args.b.dtype() == dtype;
}

void gemm(const Context& context, const Gemm& args) {
  check_args(args);
  TE_CHECK(!context.is_cuda() || args.a.dtype() != DType::f32 || args.out.dtype == DType::f32,
           "gemm: fp32 operands need an fp32 out on a GPU");
  TE_CHECK(!context.is_cuda() || args.out.dtype == DType::f32 ||
               (args.a.dtype() == DType::f16) == (args.out.dtype == DType::f16),
           "gemm: {} operands do not support an out of {} on a GPU", dtype_name(args.a.dtype()),
           dtype_name(args.out.dtype));
  TE_DISPATCH_CUDA(context, gemm, args);
  gemm_cpu(args);
}

GemmKernels gemm_kernels(const Context& context, const Gemm& args) {
  TE_ASK_CUDA(context, gemm_kernels, args);
  return is_quantized(args.a.dtype()) ? GemmKernels::fp8_reference : GemmKernels::openblas;
}

int64_t gemm_flops(const Gemm& args) {
  const auto [m, n, k] = gemm_size(args);
  return 2 * m * n * k;
}

}  // namespace te::kernels
