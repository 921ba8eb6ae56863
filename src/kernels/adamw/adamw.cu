// AdamW on the GPU: one launch over the flat buffers. For each element it reads and writes the FP32 master weight (4
// bytes, one number or two halves) and both Adam moments (4, 2 or 1 bytes), reads the gradient (4 or 2 bytes) and may
// write a BF16 weight (2 bytes). The kernel is therefore memory-bound. Each thread processes four consecutive elements.
#include <type_traits>

#include "kernels/adamw/adamw_math.h"
#include "kernels/adamw/moment_fp8.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;

// A thread's elements lie in one granule, because kWidth divides kAdamWGranule.
static_assert(kAdamWGranule % kWidth == 0);

// --- FP32 master weights ----------------------------------------------------------------------------------------

/// FP32 numbers, optionally with a copy in the model's dtype.
template <class Param>
struct Fp32Main {
  float* main;
  Param* param;  ///< null, a separate buffer or main itself

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

/// BF16 weights and 16-bit remainders.
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

// --- moments -----------------------------------------------------------------------------------------------

/// FP32 or BF16 moments.
template <class T>
struct PlainMoment {
  T* values;
  static constexpr bool kRounds = sizeof(T) == 2;
  static constexpr bool kBlocks = false;

  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    const Vector<T, N> raw = load_vector<T, N>(values + i);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = moment_value(raw.v[k]);
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N], const uint32_t (&words)[N], int bits) const {
    Vector<T, N> raw;
#pragma unroll
    for (int k = 0; k < N; ++k) round_moment(x[k], words[k] >> bits, raw.v[k]);
    store_vector(values + i, raw);
  }
};

/// FP8 codes of moment_fp8.h; a warp processes one block.
static_assert(kAdamWGranule == kWidth * kWarpSize);
template <class Format>
struct BlockMoment {
  uint8_t* codes;
  uint8_t* exponents;
  static constexpr bool kRounds = true;
  static constexpr bool kBlocks = true;

  template <int N>
  __device__ void load(int64_t i, float (&x)[N]) const {
    const Vector<uint8_t, N> raw = load_vector<uint8_t, N>(codes + i);
    const int k = exponent_of(exponents[i / kAdamWGranule]);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = Format::decode(raw.v[j], k);
  }
  template <int N>
  __device__ void store(int64_t i, const float (&x)[N], const uint32_t (&words)[N], int bits) const {
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) largest = max(largest, abs_bits(Format::magnitude(x[j])));
    const int k = block_exponent<Format>(__reduce_max_sync(kAllLanes, largest));
    Vector<uint8_t, N> raw;
#pragma unroll
    for (int j = 0; j < N; ++j) raw.v[j] = Format::encode(x[j], k, words[j] >> bits);
    store_vector(codes + i, raw);
    if (threadIdx.x % kWarpSize == 0) exponents[i / kAdamWGranule] = exponent_byte(k);
  }
};

// --- the step ----------------------------------------------------------------------------------------------

template <class Main, class Grad, class M, class V>
struct Step {
  Main main;
  const Grad* main_grad;
  M exp_avg;
  V exp_avg_sq;
  const uint8_t* flags;
  const float* grad_multiplier;  ///< may be null
  const int32_t* skip;           ///< may be null
  AdamWConstants c;
  MomentWords random;
  static constexpr bool kRounds = M::kRounds || V::kRounds;
  static constexpr bool kBlocks = M::kBlocks || V::kBlocks;  ///< then accesses are vectors, n whole blocks
};

/// Index of the run that contains element i, which is the same for the whole warp: the lanes check 32 runs at a time.
__device__ __forceinline__ int run_of_warp(const MomentWords& random, int64_t i) {
  const int lane = threadIdx.x % kWarpSize;
  int first = 0, count = random.num_runs;
  while (count > 0) {
    const int step = (count + kWarpSize - 1) / kWarpSize, mine = lane * step;
    const bool before = mine < count && random.runs[first + mine].begin <= i;
    const int last = __popc(__ballot_sync(kAllLanes, before)) - 1;
    if (last < 0) return -1;  // only in the first iteration
    if (step == 1) return first + last;
    first += last * step;
    count = min(step, count - last * step);
  }
  return -1;
}

/// Updates elements [i, i + N) of one granule; `run` is the run of element i.
template <int N, class S>
__device__ __forceinline__ void update(const S& s, const AdamWRate& rate, float multiplier, int run,
                                       int64_t i) {
  using Grad = std::remove_cvref_t<decltype(*s.main_grad)>;
  float w[N], m[N], v[N];
  s.main.load(i, w);
  const Vector<Grad, N> g = load_vector<Grad, N>(s.main_grad + i);
  s.exp_avg.load(i, m);
  s.exp_avg_sq.load(i, v);
  uint32_t words[N] = {};
  if constexpr (S::kRounds) s.random.get(run, i, words);
#pragma unroll
  for (int k = 0; k < N; ++k) adamw_element(s.c, rate, load_float(&g.v[k]) * multiplier, w[k], m[k], v[k]);
  s.main.store(i, w);
  s.exp_avg.store(i, m, words, 0);
  s.exp_avg_sq.store(i, v, words, 16);
}

/// Updates elements [begin, n), at most kWidth, of a shard that is unaligned or ends within a vector.
template <class S>
__device__ __forceinline__ void update_singly(const S& s, const AdamWRate& rate, float multiplier, int run,
                                              int64_t begin, int64_t n) {
  const int64_t end = begin + kWidth < n ? begin + kWidth : n;
  for (int64_t i = begin; i < end; ++i) {
    if constexpr (S::kRounds) run = s.random.advance(run, i);
    update<1>(s, rate, multiplier, run, i);
  }
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
  const AdamWRate rate = adamw_rate(s.c, s.flags[begin / kAdamWGranule]);
  if (S::kBlocks || (vectors && begin + kWidth <= n)) return update<kWidth>(s, rate, multiplier, run, begin);
  if constexpr (!S::kBlocks) update_singly(s, rate, multiplier, run, begin, n);
}

// --- launch ------------------------------------------------------------------------------------------------

bool all_aligned(const AdamW& args) {
  for (const Tensor* tensor :
       {&args.main_param, &args.main_grad, &args.exp_avg, &args.exp_avg_sq, &args.param, &args.remainder}) {
    if (*tensor && !is_aligned(tensor->data, kWidth * dtype_size(tensor->dtype))) return false;
  }
  return true;
}

template <class Grad, class Main, class M, class V>
void launch(const Context& context, const AdamW& args, const Main& main, const M& m, const V& v) {
  const int64_t n = args.exp_avg.numel();
  const Step<Main, Grad, M, V> step{main,      args.main_grad.as<Grad>(), m,
                                    v,         args.flags.as<uint8_t>(),  args.grad_multiplier,
                                    args.skip, adamw_constants(args),     moment_words(args)};
  const unsigned blocks = ceil_div(n, int64_t{kThreads} * kWidth);
  const bool vectors = all_aligned(args);
  if constexpr (M::kBlocks || V::kBlocks) {
    TE_CHECK(vectors && n % kAdamWGranule == 0,
             "adamw: FP8 moments need aligned buffers of whole blocks, not {} elements", n);
    adamw_kernel<true><<<blocks, kThreads, 0, cuda_stream(context)>>>(step, n);
  } else {
    const auto kernel =
        vectors ? adamw_kernel<true, Step<Main, Grad, M, V>> : adamw_kernel<false, Step<Main, Grad, M, V>>;
    kernel<<<blocks, kThreads, 0, cuda_stream(context)>>>(step, n);
  }
  TE_CUDA_CHECK_LAUNCH();
}

template <class Grad, class M, class V>
void launch_for(const Context& context, const AdamW& args, const M& m, const V& v) {
  float* const main = args.main_param.as<float>();
  if (args.remainder) {
    launch<Grad>(context, args, SplitMain{args.param.as<uint16_t>(), args.remainder.as<uint16_t>()}, m, v);
  } else if (args.param && args.param.dtype == DType::bf16) {
    launch<Grad>(context, args, Fp32Main<__nv_bfloat16>{main, args.param.as<__nv_bfloat16>()}, m, v);
  } else if (args.param && args.param.dtype == DType::f16) {
    launch<Grad>(context, args, Fp32Main<__half>{main, args.param.as<__half>()}, m, v);
  } else {
    launch<Grad>(context, args, Fp32Main<float>{main, args.param.as<float>()}, m, v);
  }
}

template <class Format, class Fn>
void visit_moment(const Tensor& moment, const Tensor& exponents, Fn&& fn) {
  if (moment.dtype == DType::f32) return fn(PlainMoment<float>{moment.as<float>()});
  if (moment.dtype == DType::bf16) return fn(PlainMoment<bfloat16>{moment.as<bfloat16>()});
  fn(BlockMoment<Format>{moment.as<uint8_t>(), exponents.as<uint8_t>()});
}

}  // namespace

void adamw(const Context& context, const AdamW& args) {
  visit_moment<Fp8ExpAvg>(args.exp_avg, args.exp_avg_exponents, [&](const auto& m) {
    visit_moment<Fp8ExpAvgSq>(args.exp_avg_sq, args.exp_avg_sq_exponents, [&](const auto& v) {
      visit_grad(args.main_grad.dtype, [&](auto grad) {
        launch_for<typename DeviceType<decltype(grad)>::type>(context, args, m, v);
      });
    });
  });
}

}  // namespace te::kernels::cuda
