// AdamW on the GPU: one launch over the flat buffers. Per element it reads and writes the main parameter (4 bytes each
// way, whole or in halves) and both moments (4 or 2 bytes each way), reads the gradient (4 or 2) and may write a BF16 copy (2),
// so it is bound by memory; each thread takes four consecutive elements.
#include <type_traits>

#include "kernels/adamw/adamw_math.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

// A thread's elements lie in one granule, because kWidth divides kAdamWGranule.
static_assert(kAdamWGranule % kWidth == 0);

// --- main parameters ---------------------------------------------------------------------------------------

/// FP32 numbers, perhaps with a copy in the model's dtype.
template <class Param>
struct WholeMain {
  float* main;
  Param* param;  ///< or null, or main

  template <int N>
  __device__ void load(int64_t i, float (&w)[N]) const {
    const Vector<float, N> x = load_vector<float, N>(main + i);
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = x.v[k];
  }
  template <int N>
  __device__ void store(int64_t i, const float (&w)[N]) const {
    Vector<float, N> x;
    Vector<Param, N> rounded;
#pragma unroll
    for (int k = 0; k < N; ++k) x.v[k] = w[k], store_float(&rounded.v[k], w[k]);
    store_vector(main + i, x);
    if (param != nullptr) store_vector(param + i, rounded);
  }
};

/// BF16 values and remainders.
struct SplitMain {
  uint16_t* value;
  uint16_t* remainder;

  template <int N>
  __device__ void load(int64_t i, float (&w)[N]) const {
    const Vector<uint16_t, N> upper = load_vector<uint16_t, N>(value + i);
    const Vector<uint16_t, N> lower = load_vector<uint16_t, N>(remainder + i);
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = __uint_as_float(join_float({upper.v[k], lower.v[k]}));
  }
  template <int N>
  __device__ void store(int64_t i, const float (&w)[N]) const {
    Vector<uint16_t, N> upper, lower;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const SplitFloat split = split_float(__float_as_uint(w[k]));
      upper.v[k] = split.value, lower.v[k] = split.remainder;
    }
    store_vector(value + i, upper);
    store_vector(remainder + i, lower);
  }
};

// --- the step ----------------------------------------------------------------------------------------------

template <class Main, class Grad, class M, class V>
struct Step {
  Main main;
  const Grad* main_grad;
  M* exp_avg;
  V* exp_avg_sq;
  const uint8_t* flags;
  const float* grad_multiplier;  ///< or null
  const int32_t* skip;           ///< or null
  AdamWConstants c;
  MomentWords random;
  static constexpr bool kRounds = sizeof(M) == 2 || sizeof(V) == 2;
};

/// The run of element i, which is the same for the whole warp: all lanes look at once, 32 runs a time.
__device__ __forceinline__ int run_of_warp(const MomentWords& random, int64_t i) {
  const int lane = threadIdx.x % kWarpSize;
  int first = 0, count = random.num_runs;
  while (count > 0) {
    const int step = (count + kWarpSize - 1) / kWarpSize, mine = lane * step;
    const bool before = mine < count && random.runs[first + mine].begin <= i;
    const int last = __popc(__ballot_sync(0xffffffffu, before)) - 1;
    if (last < 0) return -1;  // only in the first round
    if (step == 1) return first + last;
    first += last * step;
    count = min(step, count - last * step);
  }
  return -1;
}

/// Elements [i, i + N) of one granule; `run` is that of element i.
template <int N, class S>
__device__ __forceinline__ void update(const S& s, float decay, float multiplier, int run, int64_t i) {
  using Grad = std::remove_cvref_t<decltype(*s.main_grad)>;
  using M = std::remove_cvref_t<decltype(*s.exp_avg)>;
  using V = std::remove_cvref_t<decltype(*s.exp_avg_sq)>;
  float w[N];
  s.main.load(i, w);
  const Vector<Grad, N> g = load_vector<Grad, N>(s.main_grad + i);
  Vector<M, N> exp_avg = load_vector<M, N>(s.exp_avg + i);
  Vector<V, N> exp_avg_sq = load_vector<V, N>(s.exp_avg_sq + i);
  uint32_t words[N] = {};
  if constexpr (S::kRounds) s.random.get(run, i, words);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float m = moment_value(exp_avg.v[k]), v = moment_value(exp_avg_sq.v[k]);
    adamw_element(s.c, decay, load_float(&g.v[k]) * multiplier, w[k], m, v);
    round_moment(m, words[k], exp_avg.v[k]);
    round_moment(v, words[k] >> 16, exp_avg_sq.v[k]);
  }
  s.main.store(i, w);
  store_vector(s.exp_avg + i, exp_avg);
  store_vector(s.exp_avg_sq + i, exp_avg_sq);
}

template <bool vectors, class S>
__global__ void __launch_bounds__(kThreads) adamw_kernel(S s, int64_t n) {
  if (s.skip != nullptr && *s.skip != 0) return;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  int run = -1;
  if constexpr (S::kRounds) {
    const int64_t warp_begin = begin - threadIdx.x % kWarpSize * kWidth;
    run = run_of_warp(s.random, warp_begin);
  }
  if (begin >= n) return;
  if constexpr (S::kRounds) run = s.random.advance(run, begin);
  const float multiplier = s.grad_multiplier != nullptr ? *s.grad_multiplier : 1.0f;
  const float decay = (s.flags[begin / kAdamWGranule] & kGranuleDecays) != 0 ? s.c.decay : 0.0f;
  if (vectors && begin + kWidth <= n) return update<kWidth>(s, decay, multiplier, run, begin);
  const int64_t end = begin + kWidth < n ? begin + kWidth : n;
  for (int64_t i = begin; i < end; ++i) {
    if constexpr (S::kRounds) run = s.random.advance(run, i);
    update<1>(s, decay, multiplier, run, i);
  }
}

// --- launch ------------------------------------------------------------------------------------------------

bool all_aligned(const AdamW& args) {
  for (const Tensor* tensor :
       {&args.main_param, &args.main_grad, &args.exp_avg, &args.exp_avg_sq, &args.param, &args.remainder}) {
    if (*tensor && !is_aligned(tensor->data, kWidth * dtype_size(tensor->dtype))) return false;
  }
  return true;
}

template <class Grad, class M, class V, class Main>
void launch(const Context& context, const AdamW& args, const Main& main) {
  const int64_t n = args.exp_avg.numel();
  const Step<Main, Grad, M, V> step{main,
                                    args.main_grad.as<Grad>(),
                                    args.exp_avg.as<M>(),
                                    args.exp_avg_sq.as<V>(),
                                    args.flags.as<uint8_t>(),
                                    args.grad_multiplier,
                                    args.skip,
                                    adamw_constants(args),
                                    moment_words(args)};
  const auto kernel =
      all_aligned(args) ? adamw_kernel<true, decltype(step)> : adamw_kernel<false, decltype(step)>;
  kernel<<<ceil_div(n, int64_t{kThreads} * kWidth), kThreads, 0, cuda_stream(context)>>>(step, n);
  TE_CUDA_CHECK_LAUNCH();
}

template <class Grad, class M, class V>
void launch_for(const Context& context, const AdamW& args) {
  float* const main = args.main_param.as<float>();
  if (args.remainder) {
    launch<Grad, M, V>(context, args, SplitMain{args.param.as<uint16_t>(), args.remainder.as<uint16_t>()});
  } else if (args.param && args.param.dtype == DType::bf16) {
    launch<Grad, M, V>(context, args, WholeMain<__nv_bfloat16>{main, args.param.as<__nv_bfloat16>()});
  } else {
    launch<Grad, M, V>(context, args, WholeMain<float>{main, args.param.as<float>()});
  }
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  visit_hp(args.main_grad.dtype, [&](auto grad) {
    visit_hp(args.exp_avg.dtype, [&](auto m) {
      visit_hp(args.exp_avg_sq.dtype, [&](auto v) {
        launch_for<typename DeviceType<decltype(grad)>::type, decltype(m), decltype(v)>(context, args);
      });
    });
  });
}

}  // namespace te::kernels::cuda
