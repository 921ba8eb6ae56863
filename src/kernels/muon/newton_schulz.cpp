#include "kernels/muon/newton_schulz.h"

#include <algorithm>

#include "kernels/common/checks.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/muon/muon.h"

namespace te::kernels {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;

void check(const NewtonSchulz& args) {
  const char* op = "newton_schulz";
  check_high_precision(op, "x", args.x);
  TE_CHECK(args.x.shape.rank() == 2, "{}: x {} must be a matrix", op, args.x.shape.str());
  const int64_t n = std::min(args.x.rows(), args.x.cols());
  check_tensor(op, "product", args.product, args.x.dtype, args.x.shape);
  for (const auto& [name, tensor] : {std::pair{"gram", args.gram}, {"gram_squared", args.gram_squared}})
    check_tensor(op, name, tensor, args.x.dtype, {n, n});
  check_dtype(op, "sum", args.sum, DType::f32);
}

}  // namespace

void newton_schulz(const Context& context, const NewtonSchulz& args) {
  check(args);
  const Tensor& x = args.x;
  const bool wide = x.rows() <= x.cols();
  context.zero(args.sum);
  sum_of_squares(context, x.view({x.numel()}), args.sum, args.scratch);
  muon_normalize(context, {.x = x, .sum_of_squares = args.sum});
  for (int64_t i = 0; i < args.iterations; ++i) {
    gemm(context, {.a = x, .b = x, .out = args.gram, .trans_a = !wide, .trans_b = wide});
    gemm(context, {.a = args.gram, .b = args.gram, .out = args.gram_squared});
    muon_combine(context, {.x = args.gram, .y = args.gram_squared, .a = kB, .b = kC});
    gemm(context, {.a = wide ? args.gram : x, .b = wide ? x : args.gram, .out = args.product});
    muon_combine(context, {.x = x, .y = args.product, .a = kA});
  }
}

}  // namespace te::kernels
