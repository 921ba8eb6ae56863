// Vocabulary-parallel cross-entropy, one block per row in both kernels. The statistics kernel reads the logits once.
// Losses and gradients are computed from all ranks' statistics and a second pass over the logits.
#include <algorithm>
#include <type_traits>

#include "kernels/cross_entropy/cross_entropy_device.cuh"

namespace te::kernels::cuda {

namespace {

template <class T>
struct SliceParams {
  T* logits;
  const int32_t* targets;
  int64_t columns;
  int64_t first;  ///< vocabulary row of column 0
  int64_t valid;  ///< columns that are not padding
};

template <class T, int N, class Cap>
__global__ void __launch_bounds__(kRowThreads, 2)
    statistics_rows(SliceParams<T> p, float* statistics, Cap cap) {
  __shared__ float shared[kWarpSize];
  const int64_t rows = gridDim.x, r = blockIdx.x;
  const T* row = p.logits + r * p.columns;
  const Softmax all = row_softmax<T, N>(row, p.columns, p.valid, nullptr, shared, cap);
  if (threadIdx.x != 0) return;
  const int64_t target = p.targets[r] - p.first;
  const bool here = p.targets[r] >= 0 && target >= 0 && target < p.valid;
  statistics[r] = all.largest;
  statistics[rows + r] = all.sum;
  statistics[2 * rows + r] = here ? cap.load(row + target) : __int_as_float(0x7fc00000);
}

/// CrossEntropyStatistics::preceded.
template <class T, class Cap>
__global__ void __launch_bounds__(kRowThreads) preceded_rows(SliceParams<T> p, float* preceded, Cap cap) {
  const int64_t r = blockIdx.x, target = p.targets[r] - p.first;
  const T* row = p.logits + r * p.columns;
  int found = 0;
  if (p.targets[r] >= 0 && target >= 0 && target < p.valid) {
    const float logit = cap.load(row + target);
    for (int64_t c = threadIdx.x; c < target; c += blockDim.x) found |= cap.load(row + c) >= logit ? 1 : 0;
  }
  found = __syncthreads_or(found);
  if (threadIdx.x == 0) preceded[r] = found != 0 ? 1.0f : 0.0f;
}

/// Statistics of a row, combined from all ranks. Every thread reads all of them in rank order.
struct Combined {
  Softmax all;
  float target_logit;
};
__device__ __forceinline__ Combined combine(const float* statistics, int ranks, int64_t rows, int64_t r) {
  Combined result;
  result.target_logit = __int_as_float(0x7fc00000);
  for (int rank = 0; rank < ranks; ++rank) {
    const float* mine = statistics + rank * 3 * rows + r;
    result.all.largest = fmaxf(result.all.largest, mine[0]);
    if (!isnan(mine[2 * rows])) result.target_logit = mine[2 * rows];
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const float* mine = statistics + rank * 3 * rows + r;
    result.all.sum += mine[rows] * exp_of(mine[0] - result.all.largest);
  }
  return result;
}

/// A target outside -2..vocab-1 is in no rank's slice. Its loss is NaN, which the trainer detects.
template <class T, int N, class Cap>
__global__ void __launch_bounds__(kRowThreads, 2)
    from_statistics_rows(SliceParams<T> p, const float* statistics, int ranks, float* losses, float* z_losses,
                         float grad_scale, float z_loss, Cap cap) {
  const int64_t rows = gridDim.x, r = blockIdx.x;
  T* row = p.logits + r * p.columns;
  const int target = p.targets[r];
  if (is_ignored(target)) {
    if (threadIdx.x == 0) {
      losses[r] = 0.0f;
      if (z_losses != nullptr) z_losses[r] = 0.0f;
    }
    if (grad_scale != 0.0f) clear_row<T, N>(row, p.columns);
    return;
  }
  const Combined combined = combine(statistics, ranks, rows, r);
  if (threadIdx.x == 0) {
    losses[r] = logf(combined.all.sum) - (combined.target_logit - combined.all.largest);
    if (z_losses != nullptr) z_losses[r] = z_loss_term(z_loss, combined.all.log_z());
  }
  if (grad_scale != 0.0f)
    write_gradient<T, N>(row, row, p.columns, p.valid, combined.all, target - p.first, grad_scale, z_loss,
                         cap);
}

template <class T>
SliceParams<T> slice_params(const Tensor& logits, const Tensor& targets, int64_t first, int64_t vocab) {
  return {logits.as<T>(), targets.as<int32_t>(), logits.cols(), first,
          std::clamp<int64_t>(vocab - first, 0, logits.cols())};
}

/// Calls fn(width) with the number of elements of T per vector access.
template <class T, class Fn>
void with_width(const SliceParams<T>& p, Fn&& fn) {
  constexpr int N = kVectorWidth<T>;
  if (p.columns % N == 0 && is_aligned(p.logits, 16)) return fn(std::integral_constant<int, N>{});
  fn(std::integral_constant<int, 1>{});
}

/// Calls launch<N>(p, blocks, threads, cap): a block per row, N elements per vector access.
template <class Args, class Launch>
void launch_rows(const Args& args, Launch&& launch) {
  const unsigned rows = static_cast<unsigned>(args.logits.rows());
  if (rows == 0) return;
  visit_high_precision(args.logits.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    const auto p = slice_params<T>(args.logits, args.targets, args.first, args.vocab);
    with_width(p, [&](auto width) {
      constexpr int N = decltype(width)::value;
      with_cap(args.soft_cap, [&](const auto& cap) {
        launch.template operator()<N>(p, rows, row_threads(p.columns, N), cap);
      });
    });
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void cross_entropy_statistics(const Context& context, const CrossEntropyStatistics& args) {
  launch_rows(args, [&]<int N, class T>(const SliceParams<T>& p, unsigned rows, unsigned threads,
                                        const auto& cap) {
    statistics_rows<T, N><<<rows, threads, 0, cuda_stream(context)>>>(p, args.statistics.as<float>(), cap);
    if (args.preceded)
      preceded_rows<T><<<rows, threads, 0, cuda_stream(context)>>>(p, args.preceded.as<float>(), cap);
  });
}

void cross_entropy_from_statistics(const Context& context, const CrossEntropyFromStatistics& args) {
  launch_rows(args,
              [&]<int N, class T>(const SliceParams<T>& p, unsigned rows, unsigned threads, const auto& cap) {
                from_statistics_rows<T, N><<<rows, threads, 0, cuda_stream(context)>>>(
                    p, args.statistics.as<float>(), static_cast<int>(args.statistics.dim(0)),
                    args.losses.as<float>(), args.z_losses.as<float>(), args.grad_scale, args.z_loss, cap);
              });
}

}  // namespace te::kernels::cuda
