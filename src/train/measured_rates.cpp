#include "train/measured_rates.h"

#include <algorithm>
#include <functional>

#include "core/clock.h"
#include "core/device_caps.h"
#include "kernels/gemm/gemm.h"

namespace te::train {
namespace {

/// Seconds of a call: the best of several series.
double seconds_of(const Context& context, const std::function<void()>& call) {
  constexpr int kSeries = 5, kCalls = 10;
  call();  // chooses an algorithm
  double best = 0;
  for (int series = 0; series < kSeries; ++series) {
    context.synchronize();
    const double start = now_seconds();
    for (int i = 0; i < kCalls; ++i) call();
    context.synchronize();
    const double seconds = (now_seconds() - start) / kCalls;
    best = series == 0 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace

std::optional<GpuModel> measured_rates(const Context& context, const RateProblem& problem) {
  const int64_t n = problem.size, bytes = std::max(problem.bytes, 4 * n * n);  // of two BF16 operands
  if (context.info().free_bytes < 4 * bytes) return {};
  const DeviceBuffer memory(context, static_cast<size_t>(2 * bytes));
  const auto at = [&](int64_t offset, DType dtype, const Shape& shape) {
    return Tensor{static_cast<char*>(memory.data()) + offset, dtype, shape};
  };
  const Tensor from = at(0, DType::u8, {bytes}), to = at(bytes, DType::u8, {bytes});
  // With zeros power does not limit the clock, as in the peaks of datasheets.
  context.zero(from), context.zero(to);
  const Tensor out = at(0, DType::bf16, {n, n});
  const auto flops_per_second = [&](const kernels::Matrix& a, const kernels::Matrix& b) {
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    return flops / seconds_of(context, [&] {
             kernels::gemm(context, {.a = a,
                                     .b = b,
                                     .out = out,
                                     .trans_b = true,
                                     .fast_accumulation = a.dtype() != DType::bf16});
           });
  };
  GpuModel gpu{};
  gpu.sm = device_caps(context).sm;
  gpu.memory = 2.0 * static_cast<double>(bytes) / seconds_of(context, [&] { context.copy(to, from); });
  const int64_t half = bytes / 2;
  gpu.bf16 = flops_per_second(at(bytes, DType::bf16, {n, n}), at(bytes + half, DType::bf16, {n, n}));
  if (device_caps(context).fp8) {
    const Tensor scale = at(2 * n * n, DType::f32, {1});
    const auto matrix = [&](int64_t offset) {
      return kernels::Matrix(at(offset, DType::e4m3, {n, n}), scale, kernels::ScaleLayout::tensor);
    };
    gpu.fp8 = flops_per_second(matrix(bytes), matrix(bytes + half));
  }
  return gpu;
}

}  // namespace te::train
