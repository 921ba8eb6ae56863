// The experts' activation on the GPU. A warp processes a row, in 16-byte accesses for BF16 where alignment allows.
#include <type_traits>

#include "kernels/activation/activation_device.cuh"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/moe/expert_activation_gradient.cuh"
#include "kernels/moe/moe_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256, kRows = kThreads / kWarpSize;

template <class T>
struct ForwardArgs {
  const T* x;
  const int32_t* source;
  const float* probs;
  T* y;
  int64_t rows, ffn;
  float clamp;
};

template <class T>
struct BackwardArgs {
  const T* x;
  const int32_t* source;
  const float* probs;
  const T* dy;
  T* dx;
  float* d_probs;
  int64_t rows, ffn;
  float clamp;
};

__device__ __forceinline__ int64_t row_of_warp() {
  return int64_t{blockIdx.x} * kRows + threadIdx.x / kWarpSize;
}

template <ActivationKind kind, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) forward_kernel(ForwardArgs<T> a) {
  constexpr bool gated = is_gated(kind);
  const int64_t r = row_of_warp();
  if (r >= a.rows) return;
  const int32_t from = a.source[r];
  const float prob = from < 0 ? 0.0f : a.probs[from];
  const T* const row = a.x + r * (gated ? 2 * a.ffn : a.ffn);
  for (int64_t c = threadIdx.x % kWarpSize * 8; c < a.ffn; c += kWarpSize * 8) {
    Vec8<T> y = zero_vec8<T>();
    if (from >= 0) {
      const Vec8<T> x = load_vec8<kAligned>(row + c, a.ffn - c);
      Vec8<T> up;
      if constexpr (gated) up = load_vec8<kAligned>(row + a.ffn + c, a.ffn - c);
      const auto value = [&](int j) {
        const float in = gate_within<kind>(x.get(j), a.clamp);
        float factor = 0.0f;
        if constexpr (gated) factor = up_within<kind>(up.get(j), a.clamp);
        return activation_value<kind>(in, factor, activation_factor<kind, T>(in)) * prob;
      };
#pragma unroll
      for (int j = 0; j < 8; j += 2) y.set_pair(j, value(j), value(j + 1));
    }
    store_vec8<kAligned>(y, a.y + r * a.ffn + c, a.ffn - c);
  }
}

template <ActivationKind kind, class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) backward_kernel(BackwardArgs<T> a) {
  constexpr bool gated = is_gated(kind);
  const int64_t r = row_of_warp(), width = gated ? 2 * a.ffn : a.ffn;
  if (r >= a.rows) return;
  const int lane = threadIdx.x % kWarpSize;
  const int32_t from = a.source[r];
  const float prob = from < 0 ? 0.0f : a.probs[from];
  const T* const row = a.x + r * width;
  T* const out = a.dx + r * width;
  float along = 0.0f;
  for (int64_t c = lane * 8; c < a.ffn; c += kWarpSize * 8) {
    const int64_t valid = a.ffn - c;
    Vec8<T> dx = zero_vec8<T>(), d_up = zero_vec8<T>();
    if (from >= 0) {
      const Vec8<T> x = load_vec8<kAligned>(row + c, valid),
                    dy = load_vec8<kAligned>(a.dy + r * a.ffn + c, valid);
      Vec8<T> up = zero_vec8<T>();
      if constexpr (gated) up = load_vec8<kAligned>(row + a.ffn + c, valid);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float in[2], ups[2] = {};
#pragma unroll
        for (int k = 0; k < 2; ++k)
          along = fmaf(
              dy.get(j + k),
              gradient<kind, T>(x.get(j + k), up.get(j + k), dy.get(j + k), prob, a.clamp, in[k], ups[k]),
              along);
        dx.set_pair(j, in[0], in[1]);
        d_up.set_pair(j, ups[0], ups[1]);
      }
    }
    store_vec8<kAligned>(dx, out + c, valid);
    if constexpr (gated) store_vec8<kAligned>(d_up, out + a.ffn + c, valid);
  }
  along = warp_sum(along);
  if (from >= 0 && lane == 0) a.d_probs[from] = along;
}

/// Calls fn.template operator()<kind, T, kAligned>().
template <class Fn>
void visit(ActivationKind kind, DType dtype, bool aligned, Fn&& fn) {
  visit_activation(kind, [&]<ActivationKind kKind>() {
    if (dtype == DType::f32) return fn.template operator()<kKind, float, false>();
    if (dtype == DType::f16) return fn.template operator()<kKind, __half, false>();
    aligned ? fn.template operator()<kKind, __nv_bfloat16, true>()
            : fn.template operator()<kKind, __nv_bfloat16, false>();
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void expert_activation(const Context& context, const ExpertActivation& a) {
  const bool aligned = a.y.cols() % 8 == 0 && is_aligned(a.x.data, 16) && is_aligned(a.y.data, 16);
  visit(a.kind, a.x.dtype, aligned, [&]<ActivationKind kind, class T, bool kAligned>() {
    forward_kernel<kind, T, kAligned><<<ceil_div(a.x.rows(), kRows), kThreads, 0, cuda_stream(context)>>>(
        {a.x.as<T>(), a.source.as<int32_t>(), a.probs.as<float>(), a.y.as<T>(), a.x.rows(), a.y.cols(),
         a.clamp});
  });
}

void expert_activation_backward(const Context& context, const ExpertActivationBackward& a) {
  const bool aligned = a.dy.cols() % 8 == 0 && is_aligned(a.x.data, 16) && is_aligned(a.dy.data, 16) &&
                       is_aligned(a.dx.data, 16);
  visit(a.kind, a.x.dtype, aligned, [&]<ActivationKind kind, class T, bool kAligned>() {
    backward_kernel<kind, T, kAligned><<<ceil_div(a.x.rows(), kRows), kThreads, 0, cuda_stream(context)>>>(
        {a.x.as<T>(), a.source.as<int32_t>(), a.probs.as<float>(), a.dy.as<T>(), a.dx.as<T>(),
         a.d_probs.as<float>(), a.x.rows(), a.dy.cols(), a.clamp});
  });
}

}  // namespace te::kernels::cuda
