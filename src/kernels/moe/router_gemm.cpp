// Checks, dispatch and CPU reference of the router's GEMMs.
#include "kernels/moe/router_gemm.h"

#include <algorithm>
#include <vector>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/gemm/sgemm_cpu.h"
#include "kernels/gemm/widen_cpu.h"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels {
namespace {

constexpr int64_t kPartTile = 128, kPartTiles = 128, kPartTokens = 256;

/// out [m, n] (+)= op(a) * b, or op(a) * b^T with trans_b, rounded once.
void multiply_cpu(const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, const Tensor& out,
                  bool accumulate) {
  require_openblas_memory();
  static thread_local std::vector<float> a_buffer, b_buffer;
  const float *x = widen(a, a_buffer), *w = widen(b, b_buffer);
  const int64_t m = out.rows(), n = out.cols(), k = trans_a ? a.rows() : a.cols();
  constexpr int64_t kRows = 64;
#pragma omp parallel for
  for (int64_t row = 0; row < m; row += kRows) {
    static thread_local std::vector<float> tile;
    const int64_t rows = std::min(kRows, m - row);
    tile.resize(static_cast<size_t>(rows * n));
    sgemm_one_thread(trans_a, trans_b, rows, n, k, 1.0f, trans_a ? x + row : x + row * k, trans_a ? m : k, w,
                     trans_b ? k : n, 0.0f, tile.data(), n);
    visit_high_precision(out.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* const to = out.as<T>() + row * n;
      for (int64_t i = 0; i < rows * n; ++i)
        to[i] = from_float<T>(tile[static_cast<size_t>(i)] + (accumulate ? to_float(to[i]) : 0.0f));
    });
  }
}

void check_operands(const char* op, const Tensor& x, const Tensor& weight, const char* name,
                    const Tensor& logits) {
  check_high_precision(op, "x", x);
  check_dtype(op, "weight", weight, x.dtype);
  check_dtype(op, name, logits, DType::f32);
  check_shape(op, "weight", weight, {logits.cols(), x.cols()});
  check_shape(op, name, logits, {x.rows(), weight.rows()});
}

}  // namespace

int64_t router_gemm_parts(int64_t tokens, int64_t experts, int64_t hidden) {
  const auto ceil_of = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t tiles = std::max<int64_t>(1, ceil_of(experts, kPartTile) * ceil_of(hidden, kPartTile));
  return std::clamp<int64_t>(ceil_of(kPartTiles, tiles), 1, std::max<int64_t>(1, tokens / kPartTokens));
}

int64_t router_gemm_scratch(int64_t tokens, int64_t experts, int64_t hidden) {
  const int64_t parts = router_gemm_parts(tokens, 2 * experts, hidden), weight = 2 * experts * hidden;
  return parts * weight * int64_t{sizeof(float)} +
         (weight + tokens * 2 * experts) * static_cast<int64_t>(dtype_size(DType::bf16));
}

void router_gemm(const Context& context, const RouterGemm& args) {
  check_operands("router_gemm", args.x, args.weight, "logits", args.logits);
  TE_DISPATCH_CUDA(context, router_gemm, args);
  multiply_cpu(args.x, false, args.weight, true, args.logits, false);
}

void router_gemm_backward(const Context& context, const RouterGemmBackward& args) {
  const char* op = "router_gemm_backward";
  check_operands(op, args.x, args.weight, "d_logits", args.d_logits);
  check_tensor(op, "dx", args.dx, args.x.dtype, args.x.shape);
  if (args.d_weight) {
    check_high_precision(op, "d_weight", args.d_weight);
    check_shape(op, "d_weight", args.d_weight, args.weight.shape);
  }
  const int64_t bytes = router_gemm_scratch(args.x.rows(), args.weight.rows(), args.x.cols());
  TE_CHECK(static_cast<int64_t>(args.scratch.bytes()) >= bytes, "{}: scratch has {} bytes, needs {}", op,
           args.scratch.bytes(), bytes);
  TE_DISPATCH_CUDA(context, router_gemm_backward, args);
  multiply_cpu(args.d_logits, false, args.weight, false, args.dx, true);
  if (args.d_weight) multiply_cpu(args.d_logits, true, args.x, false, args.d_weight, args.accumulate);
}

}  // namespace te::kernels
