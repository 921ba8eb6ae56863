// Softmax cross-entropy and its gradient: a block per row. The row is read once from memory: while it streams
// into shared memory (two rows of 50,304 bf16 logits fit on a Hopper multiprocessor), each thread keeps the
// maximum and the scaled sum of its own elements; the gradient is then made from the copy. A row too long for
// shared memory is read a second time, mostly from L2. A thread only reads back what it stored itself.
#include <algorithm>
#include <limits>

#include "kernels/common/cuda_common.cuh"
#include "kernels/cross_entropy/cross_entropy_cuda.h"

namespace te::kernels::cuda {

namespace {

/// Two such blocks, with their rows, fit on a multiprocessor: one computes while the other waits for memory.
constexpr int kMaxThreads = 512;
constexpr int kLoads = 4;  ///< vectors a thread has in flight
/// A Hopper block may have 227 KiB of shared memory; 1 KiB is left for the reductions.
constexpr int64_t kMaxCachedBytes = 226 * 1024;
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float exp_of(float x) {
  return exp2f(x * kLog2E);
}

/// sum of exp(x - largest) over some elements. It starts from a finite maximum, so that a logit of -inf means
/// probability 0 rather than inf - inf.
struct Softmax {
  float largest = -3.402823466e38f;
  float sum = 0.0f;
};

template <class T, int N>
__device__ __forceinline__ void add_logits(Softmax& s, const Vector<T, N>& x, int valid) {
  float value[N], largest = s.largest;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    value[i] = load_float(&x.v[i]);
    if (i < valid) largest = fmaxf(largest, value[i]);
  }
  if (largest > s.largest) {
    s.sum *= exp_of(s.largest - largest);
    s.largest = largest;
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < valid) s.sum += exp_of(value[i] - largest);
}

/// The block's maximum and sum, given to all threads.
__device__ __forceinline__ Softmax block_softmax(const Softmax& mine, float* shared) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
  Softmax all;
  float largest = warp_max(mine.largest);
  if (lane == 0) shared[warp] = largest;
  __syncthreads();
  all.largest = warp_max(lane < warps ? shared[lane] : mine.largest);
  __syncthreads();
  all.sum = block_sum(mine.sum * exp_of(mine.largest - all.largest), shared);
  return all;
}

template <class T>
struct CrossEntropyParams {
  T* logits;
  const int32_t* targets;
  float* losses;
  int64_t columns;
  int64_t vocab;
  float grad_scale;
  bool cached;  ///< the row fits in shared memory
};

/// Writes zeros over a row.
template <class T, int N>
__device__ void clear_row(T* row, int64_t columns) {
  Vector<T, N> zero;
#pragma unroll
  for (int i = 0; i < N; ++i) store_float(&zero.v[i], 0.0f);
  for (int64_t c = int64_t{threadIdx.x} * N; c < columns; c += int64_t{blockDim.x} * N)
    store_vector<T, N>(row + c, zero);
}

template <class T, int N>
__device__ void write_gradient(const CrossEntropyParams<T>& p, const Softmax& all, int target,
                               const T* source, T* row) {
  const float inverse = 1.0f / all.sum;
  for (int64_t c = int64_t{threadIdx.x} * N; c < p.columns; c += int64_t{blockDim.x} * N) {
    const Vector<T, N> x = load_vector<T, N>(source + c);
    Vector<T, N> gradient;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float probability = exp_of(load_float(&x.v[i]) - all.largest) * inverse;
      const float value = (probability - (c + i == target ? 1.0f : 0.0f)) * p.grad_scale;
      store_float(&gradient.v[i], c + i < p.vocab ? value : 0.0f);
    }
    store_vector<T, N>(row + c, gradient);
  }
}

/// The device cannot throw: a target outside -1..vocab-1 gives the loss NaN, which the trainer refuses.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads, 2) cross_entropy_rows(CrossEntropyParams<T> p) {
  extern __shared__ __align__(16) unsigned char cache_bytes[];
  __shared__ float shared[kWarpSize];
  T* cache = reinterpret_cast<T*>(cache_bytes);
  T* row = p.logits + int64_t{blockIdx.x} * p.columns;
  const int target = p.targets[blockIdx.x];
  if (target == -1) {
    if (threadIdx.x == 0) p.losses[blockIdx.x] = 0.0f;
    if (p.grad_scale != 0.0f) clear_row<T, N>(row, p.columns);
    return;
  }
  // Read before the row is overwritten: the barriers of the reduction lie between.
  float target_logit = __int_as_float(0x7fc00000);
  if (threadIdx.x == 0 && target >= 0 && target < p.vocab) target_logit = load_float(row + target);

  Softmax mine;
  const int64_t stride = int64_t{blockDim.x} * N;
  for (int64_t start = int64_t{threadIdx.x} * N; start < p.columns; start += kLoads * stride) {
    Vector<T, N> x[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k)
      if (start + k * stride < p.columns) x[k] = load_vector<T, N>(row + start + k * stride);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t c = start + k * stride, left = p.vocab - c;
      if (c >= p.columns) continue;
      if (p.cached) store_vector<T, N>(cache + c, x[k]);
      add_logits<T, N>(mine, x[k], left >= N ? N : static_cast<int>(left));
    }
  }
  const Softmax all = block_softmax(mine, shared);
  if (threadIdx.x == 0) p.losses[blockIdx.x] = logf(all.sum) - (target_logit - all.largest);
  if (p.grad_scale != 0.0f) write_gradient<T, N>(p, all, target, p.cached ? cache : row, row);
}

template <class T, int N>
void launch(const Context& context, CrossEntropyParams<T> p, int64_t rows) {
  const int64_t bytes = p.columns * static_cast<int64_t>(sizeof(T));
  p.cached = p.grad_scale != 0.0f && bytes <= kMaxCachedBytes;  // a loss alone needs no second look
  const int shared_bytes = p.cached ? static_cast<int>(bytes) : 0;
  if (shared_bytes > 48 * 1024)
    TE_CUDA_CHECK(cudaFuncSetAttribute(cross_entropy_rows<T, N>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       shared_bytes));
  const int64_t vectors = ceil_div(p.columns, N);
  const unsigned threads = static_cast<unsigned>(
      std::min<int64_t>(kMaxThreads, ceil_div(vectors, kWarpSize) * int64_t{kWarpSize}));
  cross_entropy_rows<T, N><<<static_cast<unsigned>(rows), threads, shared_bytes, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_cross_entropy(const Context& context, const CrossEntropy& a) {
  constexpr int N = kVectorWidth<T>;
  CrossEntropyParams<T> p;
  p.logits = a.logits.as<T>();
  p.targets = a.targets.as<int32_t>();
  p.losses = a.losses.as<float>();
  p.columns = a.logits.cols();
  p.vocab = a.vocab;
  p.grad_scale = a.grad_scale;
  p.cached = false;
  const bool vectors = p.columns % N == 0 && is_aligned(p.logits, 16);
  vectors ? launch<T, N>(context, p, a.logits.rows()) : launch<T, 1>(context, p, a.logits.rows());
}

constexpr int kSumThreads = 1024;

/// One block: the order of the sum depends on the count alone.
__global__ void __launch_bounds__(kSumThreads) sum_values(const float* values, int64_t count, float* sum) {
  __shared__ float shared[kWarpSize];
  float mine = 0.0f;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) mine += values[i];
  const float total = block_sum(mine, shared);
  if (threadIdx.x == 0) *sum += total;
}

}  // namespace

void cross_entropy(const Context& context, const CrossEntropy& args) {
  visit_hp(args.logits.dtype, [&](auto zero) {
    launch_cross_entropy<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum) {
  sum_values<<<1, kSumThreads, 0, cuda_stream(context)>>>(values.as<float>(), values.numel(),
                                                          sum.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
