// Checks, dispatch and CPU reference of grouped GEMMs: tiles of each expert's result, multiplied by OpenBLAS in FP32
// and rounded once, as in gemm.cpp.
#include "kernels/moe/grouped_gemm.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/common/row_blocks.h"
#include "kernels/gemm/sgemm_cpu.h"
#include "kernels/gemm/widen_cpu.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels {
namespace {

constexpr int64_t kGroupTileRows = 128;
constexpr int64_t kGroupTileCols = 256;

void check_group_scales(const char* op, const Matrix& matrix, int64_t experts) {
  check_dtype(op, "scales", matrix.scales, DType::f32);
  TE_CHECK(matrix.layout != ScaleLayout::none && matrix.layout != ScaleLayout::rows &&
               (matrix.scale_stride == 0 || matrix.scale_stride == matrix.rows()),
           "{}: scales must be per expert, or per vector or block of whole tensors", op);
  const bool one = matrix.layout == ScaleLayout::tensor;
  check_shape(op, "scales", matrix.scales,
              one ? Shape{experts} : scale_shape(matrix.layout, matrix.rows(), matrix.cols()));
}

void check_group_operands(const char* op, const Matrix& a, const Matrix& b, const Tensor& offsets) {
  TE_CHECK(a && b, "{}: a and b are required", op);
  check_dtype(op, "offsets", offsets, DType::i32);
  TE_CHECK(offsets.numel() > 1, "{}: offsets {} must be [experts + 1]", op, offsets.shape.str());
  if (!is_fp8(a.dtype())) {
    check_high_precision(op, "a", a.values);
    check_dtype(op, "b", b.values, a.dtype());
    TE_CHECK(!a.scales && !b.scales, "{}: only FP8 operands can have scales", op);
    return;
  }
  TE_CHECK(is_fp8(b.dtype()) && (a.dtype() == DType::e4m3 || b.dtype() == DType::e4m3),
           "{}: a is {} and b is {}; both must be FP8, one of them E4M3", op, dtype_name(a.dtype()),
           dtype_name(b.dtype()));
  TE_CHECK((a.layout == ScaleLayout::tensor) == (b.layout == ScaleLayout::tensor),
           "{}: the scale layouts of a and b do not go together", op);
  for (const Matrix& matrix : {a, b}) check_group_scales(op, matrix, offsets.numel() - 1);
}

/// One expert's GEMM of FP32 matrices: strides are those of the stored matrices.
struct ExpertGemm {
  const float *a, *b;
  int64_t m, n, k, lda, ldb;
  bool trans_a, trans_b;
  float scale;
  int64_t out;  ///< first element in the result, rows of n
};

template <class T>
void run_group_tile(const ExpertGemm& g, T* result, int64_t row, int64_t col, bool accumulate) {
  static thread_local std::vector<float> tile(kGroupTileRows * kGroupTileCols);
  const int64_t rows = std::min(kGroupTileRows, g.m - row), cols = std::min(kGroupTileCols, g.n - col);
  if (g.k > 0) {
    sgemm_one_thread(g.trans_a, g.trans_b, rows, cols, g.k, g.scale,
                     g.trans_a ? g.a + row : g.a + row * g.lda, g.lda,
                     g.trans_b ? g.b + col * g.ldb : g.b + col, g.ldb, 0.0f, tile.data(), cols);
  } else {
    std::fill_n(tile.begin(), rows * cols, 0.0f);
  }
  for (int64_t r = 0; r < rows; ++r) {
    T* const out = result + g.out + (row + r) * g.n + col;
    const float* const sums = tile.data() + r * cols;
    for (int64_t c = 0; c < cols; ++c)
      out[c] = from_float<T>(sums[c] + (accumulate ? to_float(out[c]) : 0.0f));
  }
}

void run_groups(const std::vector<ExpertGemm>& gemms, const Tensor& out, bool accumulate) {
  require_openblas_memory();
  struct Tile {
    const ExpertGemm* gemm;
    int64_t row, col;
  };
  std::vector<Tile> tiles;
  for (const ExpertGemm& gemm : gemms)
    for (int64_t row = 0; row < gemm.m; row += kGroupTileRows)
      for (int64_t col = 0; col < gemm.n; col += kGroupTileCols) tiles.push_back({&gemm, row, col});
  visit_high_precision(out.dtype, [&](auto zero) {
#pragma omp parallel for schedule(dynamic)
    for (const Tile& tile : tiles)
      run_group_tile(*tile.gemm, out.as<decltype(zero)>(), tile.row, tile.col, accumulate);
  });
}

/// The matrix without blocks of rows, in the buffer; high precision has none.
Matrix without_row_blocks(const Matrix& matrix, std::vector<uint8_t>& buffer) {
  if (!is_fp8(matrix.dtype())) return matrix;
  const int64_t cols = matrix.rows(), rows = matrix.cols();
  const auto* const values = matrix.values.as<uint8_t>();
  buffer.resize(static_cast<size_t>(cols * rows));
#pragma omp parallel for
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r)
      buffer[static_cast<size_t>(c * rows + r)] = values[row_block_index(c, r, cols, rows)];
  Matrix result = matrix;
  result.values.data = buffer.data();
  return result;
}

/// Inverse scale of the products of an expert.
float group_scale(const Matrix& a, const Matrix& b, int64_t expert) {
  if (a.layout != ScaleLayout::tensor) return 1.0f;
  return a.scales.as<float>()[expert] * b.scales.as<float>()[expert];
}

}  // namespace

void grouped_gemm(const Context& context, const GroupedGemm& args) {
  const char* op = "grouped_gemm";
  check_group_operands(op, args.a, args.b, args.offsets);
  const int64_t experts = args.offsets.numel() - 1, rows = args.a.rows(), k = args.a.cols();
  const int64_t n = args.out.cols();
  const bool transposed = is_fp8(args.b.dtype()) && !args.trans_b;  // b: [n, experts * k]
  check_shape(op, "b", args.b.values,
              transposed     ? Shape{n, experts * k}
              : args.trans_b ? Shape{experts * n, k}
                             : Shape{experts * k, n});
  check_high_precision(op, "out", args.out);
  check_shape(op, "out", args.out, {rows, n});
  TE_CHECK(args.out.dtype == DType::f32 ||
               args.out.dtype == (is_fp8(args.b.dtype()) ? DType::bf16 : args.b.dtype()),
           "{}: {} operands do not support an out of {}", op, dtype_name(args.b.dtype()),
           dtype_name(args.out.dtype));
  TE_DISPATCH_CUDA(context, grouped_gemm, args);
  static thread_local std::vector<float> a_buffer, b_buffer;
  const float *x = widen(args.a, a_buffer), *w = widen(args.b, b_buffer);
  const int64_t ldb = transposed ? experts * k : args.trans_b ? k : n;
  std::vector<ExpertGemm> gemms;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = args.offsets.as<int32_t>()[e], end = args.offsets.as<int32_t>()[e + 1];
    gemms.push_back({x + first * k, w + e * (transposed ? k : n * k), end - first, n, k, k, ldb, false,
                     transposed || args.trans_b, group_scale(args.a, args.b, e), first * n});
  }
  run_groups(gemms, args.out, args.accumulate);
}

void grouped_wgrad(const Context& context, const GroupedWgrad& args) {
  const char* op = "grouped_wgrad";
  check_group_operands(op, args.a, args.b, args.offsets);
  const Matrix &a = args.a, &b = args.b;
  const bool fp8 = is_fp8(a.dtype());
  const int64_t experts = args.offsets.numel() - 1, rows = fp8 ? a.cols() : a.rows();
  const int64_t m = fp8 ? a.rows() : a.cols(), n = fp8 ? b.rows() : b.cols();
  TE_CHECK((fp8 ? b.cols() : b.rows()) == rows, "{}: a {} and b {} disagree on the rows", op,
           a.values.shape.str(), b.values.shape.str());
  check_grad(op, "out", args.out);
  check_shape(op, "out", args.out, {experts * m, n});
  TE_DISPATCH_CUDA(context, grouped_wgrad, args);
  static thread_local std::vector<float> a_buffer, b_buffer;
  static thread_local std::vector<uint8_t> a_bytes, b_bytes;
  const float *dy = widen(without_row_blocks(a, a_bytes), a_buffer),
              *x = widen(without_row_blocks(b, b_bytes), b_buffer);
  std::vector<ExpertGemm> gemms;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t first = args.offsets.as<int32_t>()[e], end = args.offsets.as<int32_t>()[e + 1];
    gemms.push_back({dy + (fp8 ? first : first * m), x + (fp8 ? first : first * n), m, n, end - first,
                     fp8 ? rows : m, fp8 ? rows : n, !fp8, fp8, group_scale(a, b, e), e * m * n});
  }
  run_groups(gemms, args.out, args.accumulate);
}

}  // namespace te::kernels
