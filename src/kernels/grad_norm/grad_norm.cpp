// Gradient norm and clipping: checks, dispatch and the CPU reference.
#include "kernels/grad_norm/grad_norm.h"

#include <algorithm>

#include "kernels/common/checks.h"
#include "kernels/grad_norm/grad_norm_rule.h"

namespace te::kernels {
namespace {

// FP32 products; eight running sums, so that the compiler can use vectors without reordering anything,
// emptied into FP64 often enough that their rounding does not grow with n.
double sum_range(const float* x, int64_t begin, int64_t end) {
  constexpr int kLanes = 8;
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, end);
    float lanes[kLanes] = {};
    int64_t i = block;
    for (; i + kLanes <= stop; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < stop; ++i) lanes[0] += x[i] * x[i];
    for (float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

void sum_of_squares_cpu(const float* x, int64_t n, float* out, double* parts) {
  const int64_t length = (n + kSumOfSquaresParts - 1) / kSumOfSquaresParts;
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < kSumOfSquaresParts; ++part)
    parts[part] = sum_range(x, std::min(part * length, n), std::min((part + 1) * length, n));
  double total = *out;
  for (int part = 0; part < kSumOfSquaresParts; ++part) total += parts[part];
  *out = static_cast<float>(total);
}

}  // namespace

int64_t sum_of_squares_scratch_elements() {
  return 2 * kSumOfSquaresParts;
}

void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch) {
  check_dtype("sum_of_squares", "out", out, DType::f32);
  check_shape("sum_of_squares", "out", out, {1});
  if (x.numel() == 0) return;
  check_dtype("sum_of_squares", "x", x, DType::f32);
  check_dtype("sum_of_squares", "scratch", scratch, DType::f32);
  TE_CHECK(scratch.numel() >= sum_of_squares_scratch_elements(),
           "sum_of_squares: scratch has {} elements, needs {}", scratch.numel(),
           sum_of_squares_scratch_elements());
  TE_CHECK(reinterpret_cast<uintptr_t>(scratch.data) % sizeof(double) == 0,
           "sum_of_squares: scratch must be 8-byte aligned");
  TE_DISPATCH_CUDA(context, sum_of_squares, x, out, scratch);
  sum_of_squares_cpu(x.as<float>(), x.numel(), out.as<float>(), scratch.as<double>());
}

void clip_coefficient(const Context& context, const ClipCoefficient& args) {
  check_dtype("clip_coefficient", "sum_of_squares", args.sum_of_squares, DType::f32);
  if (args.loss) check_dtype("clip_coefficient", "loss", args.loss, DType::f32);
  check_dtype("clip_coefficient", "grad_norm", args.grad_norm, DType::f32);
  check_dtype("clip_coefficient", "multiplier", args.multiplier, DType::f32);
  check_dtype("clip_coefficient", "skip", args.skip, DType::i32);
  TE_DISPATCH_CUDA(context, clip_coefficient, args);
  const ClipResult result =
      clip_rule(*args.sum_of_squares.as<float>(), args.loss ? *args.loss.as<float>() : 0.0f, args.clip);
  *args.grad_norm.as<float>() = result.grad_norm;
  *args.multiplier.as<float>() = result.multiplier;
  *args.skip.as<int32_t>() = result.skip;
}

}  // namespace te::kernels
