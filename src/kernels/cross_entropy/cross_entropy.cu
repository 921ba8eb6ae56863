// Softmax cross-entropy and its gradient, one block per row. The row is read from global memory once: while it is
// copied into shared memory (two rows of 50,304 bf16 logits fit on a Hopper SM), each thread keeps the maximum and the
// scaled sum of its elements; the gradient is computed from the copy. A row that does not fit is read a second time,
// mostly from L2. Each thread reads back only what it stored itself.
#include "kernels/cross_entropy/cross_entropy_device.cuh"

namespace te::kernels::cuda {

namespace {

constexpr int64_t kReductionBytes = 1024;  ///< of a block's shared memory

template <class T>
struct CrossEntropyParams {
  T* logits;
  const int32_t* targets;
  float* losses;
  float* z_losses;  ///< may be null
  int64_t columns;
  int64_t vocab;
  float grad_scale;
  float z_loss;
  bool cached;  ///< the row fits in shared memory
};

/// Device code cannot throw. A target outside -2..vocab-1 gives the loss NaN, which the trainer detects.
template <class T, int N, class Cap>
__global__ void __launch_bounds__(kRowThreads, 2) cross_entropy_rows(CrossEntropyParams<T> p, Cap cap) {
  extern __shared__ __align__(16) unsigned char cache_bytes[];
  __shared__ float shared[kWarpSize];
  T* cache = reinterpret_cast<T*>(cache_bytes);
  T* row = p.logits + int64_t{blockIdx.x} * p.columns;
  const int target = p.targets[blockIdx.x];
  if (is_ignored(target)) {
    if (threadIdx.x == 0) {
      p.losses[blockIdx.x] = 0.0f;
      if (p.z_losses != nullptr) p.z_losses[blockIdx.x] = 0.0f;
    }
    if (p.grad_scale != 0.0f) clear_row<T, N>(row, p.columns);
    return;
  }
  // Read before the row is overwritten: the barriers of the reduction are in between.
  float target_logit = __int_as_float(0x7fc00000);
  if (threadIdx.x == 0 && target >= 0 && target < p.vocab) target_logit = cap.load(row + target);

  const Softmax all = row_softmax<T, N>(row, p.columns, p.vocab, p.cached ? cache : nullptr, shared, cap);
  if (threadIdx.x == 0) {
    p.losses[blockIdx.x] = logf(all.sum) - (target_logit - all.largest);
    if (p.z_losses != nullptr) p.z_losses[blockIdx.x] = z_loss_term(p.z_loss, all.log_z());
  }
  if (p.grad_scale != 0.0f)
    write_gradient<T, N>(p.cached ? cache : row, row, p.columns, p.vocab, all, target, p.grad_scale, p.z_loss,
                         cap);
}

template <class T, int N, class Cap>
void launch(const Context& context, CrossEntropyParams<T> p, const Cap& cap, int64_t rows) {
  const int64_t bytes = p.columns * static_cast<int64_t>(sizeof(T));
  // The loss alone needs no second pass.
  p.cached = p.grad_scale != 0.0f && bytes <= device_caps(context).shared_bytes - kReductionBytes;
  const size_t shared_bytes = p.cached ? static_cast<size_t>(bytes) : 0;
  if (shared_bytes > 48 * 1024) allow_shared_memory(context, cross_entropy_rows<T, N, Cap>, shared_bytes);
  cross_entropy_rows<T, N, Cap>
      <<<static_cast<unsigned>(rows), row_threads(p.columns, N), shared_bytes, cuda_stream(context)>>>(p,
                                                                                                       cap);
  TE_CUDA_CHECK_LAUNCH();
}

template <class T>
void launch_cross_entropy(const Context& context, const CrossEntropy& a) {
  constexpr int N = kVectorWidth<T>;
  CrossEntropyParams<T> p;
  p.logits = a.logits.as<T>();
  p.targets = a.targets.as<int32_t>();
  p.losses = a.losses.as<float>();
  p.z_losses = a.z_losses.as<float>();
  p.columns = a.logits.cols();
  p.vocab = a.vocab;
  p.grad_scale = a.grad_scale;
  p.z_loss = a.z_loss;
  p.cached = false;
  const bool vectors = p.columns % N == 0 && is_aligned(p.logits, 16);
  with_cap(a.soft_cap, [&](const auto& cap) {
    vectors ? launch<T, N>(context, p, cap, a.logits.rows()) : launch<T, 1>(context, p, cap, a.logits.rows());
  });
}

constexpr int kSumThreads = 1024;

/// A single block, so that the summation order depends only on the count.
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
  visit_high_precision(args.logits.dtype, [&](auto zero) {
    launch_cross_entropy<typename DeviceType<decltype(zero)>::type>(context, args);
  });
}

void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum) {
  sum_values<<<1, kSumThreads, 0, cuda_stream(context)>>>(values.as<float>(), values.numel(),
                                                          sum.as<float>());
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
