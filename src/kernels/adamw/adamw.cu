// AdamW on the GPU: one launch over the flat buffers. It reads 16 and writes 12 (with a bf16 copy 14; with halves
// reads 16 and writes 12) bytes per element, so it is bound by memory; each thread takes four consecutive elements, 16 bytes of every FP32
// buffer.
#include "kernels/adamw/adamw_math.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

template <class Param, class Grad>
struct Pointers {
  float* main_param;
  const Grad* main_grad;
  float* exp_avg;
  float* exp_avg_sq;
  Param* param;  ///< or null, or main_param
  uint16_t* remainder;
  const uint8_t* flags;
  const float* grad_multiplier;  ///< or null
  const int32_t* skip;           ///< or null
};

// A thread's elements lie in one granule, because kWidth divides kAdamWGranule.
static_assert(kAdamWGranule % kWidth == 0);

/// Main parameters in two halves: param is their upper one.
template <class Grad, bool vectors>
__global__ void __launch_bounds__(kThreads)
    adamw_split_kernel(Pointers<__nv_bfloat16, Grad> p, AdamWConstants c, int64_t n) {
  if (p.skip != nullptr && *p.skip != 0) return;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (begin >= n) return;
  const float multiplier = p.grad_multiplier != nullptr ? *p.grad_multiplier : 1.0f;
  const float decay = (p.flags[begin / kAdamWGranule] & kGranuleDecays) != 0 ? c.decay : 0.0f;
  uint16_t* const value = reinterpret_cast<uint16_t*>(p.param);
  if (vectors && begin + kWidth <= n) {
    Vector<uint16_t, kWidth> upper = load_vector<uint16_t, kWidth>(value + begin);
    Vector<uint16_t, kWidth> lower = load_vector<uint16_t, kWidth>(p.remainder + begin);
    const Vector<Grad, kWidth> g = load_vector<Grad, kWidth>(p.main_grad + begin);
    Vector<float, kWidth> m = load_vector<float, kWidth>(p.exp_avg + begin);
    Vector<float, kWidth> v = load_vector<float, kWidth>(p.exp_avg_sq + begin);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      SplitFloat split{upper.v[k], lower.v[k]};
      adamw_split(c, decay, load_float(&g.v[k]) * multiplier, split, m.v[k], v.v[k]);
      upper.v[k] = split.value, lower.v[k] = split.remainder;
    }
    store_vector(value + begin, upper);
    store_vector(p.remainder + begin, lower);
    store_vector(p.exp_avg + begin, m);
    store_vector(p.exp_avg_sq + begin, v);
    return;
  }
  const int64_t end = begin + kWidth < n ? begin + kWidth : n;
  for (int64_t i = begin; i < end; ++i) {
    SplitFloat split{value[i], p.remainder[i]};
    float m = p.exp_avg[i], v = p.exp_avg_sq[i];
    adamw_split(c, decay, load_float(p.main_grad + i) * multiplier, split, m, v);
    value[i] = split.value, p.remainder[i] = split.remainder;
    p.exp_avg[i] = m;
    p.exp_avg_sq[i] = v;
  }
}

template <class Param, class Grad, bool vectors>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Pointers<Param, Grad> p, AdamWConstants c, int64_t n) {
  if (p.skip != nullptr && *p.skip != 0) return;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (begin >= n) return;
  const float multiplier = p.grad_multiplier != nullptr ? *p.grad_multiplier : 1.0f;
  const float decay = (p.flags[begin / kAdamWGranule] & kGranuleDecays) != 0 ? c.decay : 0.0f;
  if (vectors && begin + kWidth <= n) {
    Vector<float, kWidth> w = load_vector<float, kWidth>(p.main_param + begin);
    const Vector<Grad, kWidth> g = load_vector<Grad, kWidth>(p.main_grad + begin);
    Vector<float, kWidth> m = load_vector<float, kWidth>(p.exp_avg + begin);
    Vector<float, kWidth> v = load_vector<float, kWidth>(p.exp_avg_sq + begin);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      adamw_element(c, decay, load_float(&g.v[k]) * multiplier, w.v[k], m.v[k], v.v[k]);
    store_vector(p.main_param + begin, w);
    store_vector(p.exp_avg + begin, m);
    store_vector(p.exp_avg_sq + begin, v);
    if (p.param != nullptr) {
      Vector<Param, kWidth> rounded;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) store_float(&rounded.v[k], w.v[k]);
      store_vector(p.param + begin, rounded);
    }
    return;
  }
  const int64_t end = begin + kWidth < n ? begin + kWidth : n;
  for (int64_t i = begin; i < end; ++i) {
    float w = p.main_param[i], m = p.exp_avg[i], v = p.exp_avg_sq[i];
    adamw_element(c, decay, load_float(p.main_grad + i) * multiplier, w, m, v);
    p.main_param[i] = w;
    p.exp_avg[i] = m;
    p.exp_avg_sq[i] = v;
    if (p.param != nullptr) store_float(p.param + i, w);
  }
}

template <class Param, class Grad>
void launch(const Context& context, const AdamW& args) {
  const int64_t n = args.exp_avg.numel();
  const Pointers<Param, Grad> p{
      args.main_param.as<float>(), args.main_grad.as<Grad>(), args.exp_avg.as<float>(),
      args.exp_avg_sq.as<float>(), args.param.as<Param>(),    args.remainder.as<uint16_t>(),
      args.flags.as<uint8_t>(),    args.grad_multiplier,      args.skip};
  const AdamWConstants c = adamw_constants(args);
  const unsigned blocks = ceil_div(n, int64_t{kThreads} * kWidth);
  const bool vectors = is_aligned(p.main_param, 16) && is_aligned(p.main_grad, kWidth * sizeof(Grad)) &&
                       is_aligned(p.exp_avg, 16) && is_aligned(p.exp_avg_sq, 16) &&
                       is_aligned(p.param, kWidth * sizeof(Param)) && is_aligned(p.remainder, 2 * kWidth);
  const auto choose = [&] {
    if constexpr (sizeof(Param) == 2) {
      if (p.remainder != nullptr)
        return vectors ? adamw_split_kernel<Grad, true> : adamw_split_kernel<Grad, false>;
    }
    return vectors ? adamw_kernel<Param, Grad, true> : adamw_kernel<Param, Grad, false>;
  };
  choose()<<<blocks, kThreads, 0, cuda_stream(context)>>>(p, c, n);
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  visit_hp(args.param ? args.param.dtype : DType::f32, [&](auto param_zero) {
    visit_hp(args.main_grad.dtype, [&](auto grad_zero) {
      launch<typename DeviceType<decltype(param_zero)>::type, typename DeviceType<decltype(grad_zero)>::type>(
          context, args);
    });
  });
}

}  // namespace te::kernels::cuda
