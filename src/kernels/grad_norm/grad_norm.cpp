// Checks, dispatch and CPU reference of gradient norm and clipping.
#include "kernels/grad_norm/grad_norm.h"

#include <algorithm>

#include "core/float_types.h"
#include "kernels/common/checks.h"
#include "kernels/grad_norm/grad_norm_rule.h"

namespace te::kernels {
namespace {

constexpr int64_t kBlock = 1024;

// FP32 squares with eight running sums, so that the compiler can vectorize without reordering.
double add_block(const float* x, int64_t count, double total) {
  constexpr int kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (; i < count; ++i) lanes[0] += x[i] * x[i];
  for (float lane : lanes) total += static_cast<double>(lane);
  return total;
}

/// Copies x[begin, end) to `block`, with zeros for granules that are not counted.
template <class T>
void load_block(const T* x, const uint8_t* flags, int64_t begin, int64_t end, float* block) {
  if (flags == nullptr) {
    for (int64_t i = begin; i < end; ++i) block[i - begin] = to_float(x[i]);
    return;
  }
  for (int64_t i = begin; i < end;) {
    const int64_t granule = i / kAdamWGranule, stop = std::min(end, (granule + 1) * kAdamWGranule);
    const bool counted = (flags[granule] & kGranuleCounted) != 0;
    for (; i < stop; ++i) block[i - begin] = counted ? to_float(x[i]) : 0.0f;
  }
}

// Blocks are summed in FP64, so that the rounding error does not grow with n.
template <class T>
double sum_range(const T* x, const uint8_t* flags, int64_t begin, int64_t end) {
  float values[kBlock];
  double total = 0;
  for (int64_t block = begin; block < end; block += kBlock) {
    const int64_t stop = std::min(block + kBlock, end);
    load_block(x, flags, block, stop, values);
    total = add_block(values, stop - block, total);
  }
  return total;
}

template <class T>
void sum_of_squares_cpu(const T* x, const uint8_t* flags, int64_t n, float* out, double* parts) {
  const int64_t length = (n + kSumOfSquaresParts - 1) / kSumOfSquaresParts;
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < kSumOfSquaresParts; ++part)
    parts[part] = sum_range(x, flags, std::min(part * length, n), std::min((part + 1) * length, n));
  double total = *out;
  for (int part = 0; part < kSumOfSquaresParts; ++part) total += parts[part];
  *out = static_cast<float>(total);
}

}  // namespace

int64_t sum_of_squares_scratch_elements() {
  return 2 * kSumOfSquaresParts;
}

void sum_of_squares(const Context& context, const Tensor& x, const Tensor& out, const Tensor& scratch,
                    const Tensor& flags) {
  check_tensor("sum_of_squares", "out", out, DType::f32, {1});
  if (x.numel() == 0) return;
  check_high_precision("sum_of_squares", "x", x);
  check_dtype("sum_of_squares", "scratch", scratch, DType::f32);
  TE_CHECK(scratch.numel() >= sum_of_squares_scratch_elements(),
           "sum_of_squares: scratch has {} elements, needs {}", scratch.numel(),
           sum_of_squares_scratch_elements());
  TE_CHECK(reinterpret_cast<uintptr_t>(scratch.data) % sizeof(double) == 0,
           "sum_of_squares: scratch must be 8-byte aligned");
  if (flags) check_tensor("sum_of_squares", "flags", flags, DType::u8, {granules_of(x.numel())});
  TE_DISPATCH_CUDA(context, sum_of_squares, x, out, scratch, flags);
  visit_high_precision(x.dtype, [&](auto zero) {
    sum_of_squares_cpu(x.as<decltype(zero)>(), flags.as<uint8_t>(), x.numel(), out.as<float>(),
                       scratch.as<double>());
  });
}

void clip_coefficient(const Context& context, const ClipCoefficient& args) {
  check_dtype("clip_coefficient", "sum_of_squares", args.sum_of_squares, DType::f32);
  if (args.loss) check_dtype("clip_coefficient", "loss", args.loss, DType::f32);
  check_dtype("clip_coefficient", "grad_norm", args.grad_norm, DType::f32);
  check_dtype("clip_coefficient", "multiplier", args.multiplier, DType::f32);
  check_dtype("clip_coefficient", "skip", args.skip, DType::i32);
  TE_DISPATCH_CUDA(context, clip_coefficient, args);
  const ClipResult result =
      clip_rule(*args.sum_of_squares.as<float>(), args.loss ? *args.loss.as<float>() : 0.0f, args.clip,
                args.largest_loss, 1.0f / args.gradient_scale);
  *args.grad_norm.as<float>() = result.grad_norm;
  *args.multiplier.as<float>() = result.multiplier;
  *args.skip.as<int32_t>() = result.skip;
}

}  // namespace te::kernels
