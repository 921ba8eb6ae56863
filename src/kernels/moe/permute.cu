// Order of rows by experts, permutation and its reverse on the GPU. Rows are processed by one block each, in 16-byte
// accesses where alignment allows.
#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/activation/activation_device.cuh"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/moe/prefix_sum.cuh"

namespace te::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOrderThreads = 1024;

/// The part of the selections that a warp of a block reads, 128 at a time.
struct WarpPart {
  int64_t begin, end;
  explicit __device__ WarpPart(int64_t selections) {
    constexpr int64_t kStep = 4 * kWarpSize, kAll = kOrderThreads / kWarpSize * kStep;
    const int64_t each = (selections + kAll - 1) / kAll * kStep;
    begin = min(threadIdx.x / kWarpSize * each, selections);
    end = min(begin + each, selections);
  }
};

/// Calls fn(i, own), own with a bit for each of the selections i to i + 3 that is of `expert`; i is that of the lane.
template <class Fn>
__device__ __forceinline__ void for_selections(const int32_t* experts, const WarpPart& part, int32_t expert,
                                               Fn&& fn) {
  for (int64_t step = part.begin; step < part.end; step += 4 * kWarpSize) {
    const int64_t i = step + threadIdx.x % kWarpSize * 4;
    int4 four = make_int4(-1, -1, -1, -1);
    if (i + 4 <= part.end) {
      four = *reinterpret_cast<const int4*>(experts + i);
    } else {
      if (i < part.end) four.x = experts[i];
      if (i + 1 < part.end) four.y = experts[i + 1];
      if (i + 2 < part.end) four.z = experts[i + 2];
    }
    fn(i, (four.x == expert ? 1u : 0u) | (four.y == expert ? 2u : 0u) | (four.z == expert ? 4u : 0u) |
              (four.w == expert ? 8u : 0u));
  }
}

/// Selections of the block's expert in the parts of the warps before this one, and in all.
__device__ int2 count_before(const int32_t* experts, const WarpPart& part, int* shared) {
  int count = 0;
  for_selections(experts, part, static_cast<int32_t>(blockIdx.x),
                 [&](int64_t, unsigned own) { count += __popc(own); });
  const int warp = threadIdx.x / kWarpSize;
  count = __reduce_add_sync(kAllLanes, count);
  if (threadIdx.x % kWarpSize == 0) shared[warp] = count;
  __syncthreads();
  int2 counts{0, 0};
  for (int w = 0; w < kOrderThreads / kWarpSize; ++w) {
    if (w < warp) counts.x += shared[w];
    counts.y += shared[w];
  }
  return counts;
}

__global__ void __launch_bounds__(kOrderThreads)
    count_kernel(const int32_t* experts, int64_t selections, int32_t* counts) {
  __shared__ int shared[kOrderThreads / kWarpSize];
  const int count = count_before(experts, WarpPart(selections), shared).y;
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

/// Replaces counts in offsets[1 ...] by the ends of the padded ranges.
__global__ void __launch_bounds__(kOrderThreads)
    offsets_kernel(int32_t* offsets, int64_t experts, int32_t alignment) {
  static_assert(kMaxExperts <= kOrderThreads);
  __shared__ int shared[kOrderThreads / kWarpSize];
  const int e = static_cast<int>(threadIdx.x);
  const int rows = e < experts ? (offsets[e + 1] + alignment - 1) / alignment * alignment : 0;
  const int before = prefix_sum(rows, shared).x;
  if (e < experts) offsets[e + 1] = before + rows;
  if (e == 0) offsets[0] = 0;
}

__global__ void fill_kernel(int32_t* source, int64_t rows, int32_t* row_of, int64_t selections) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows) source[i] = -1;
  if (i < selections) row_of[i] = -1;
}

/// Block e places the selections of expert e, in their order.
__global__ void __launch_bounds__(kOrderThreads)
    place_kernel(const int32_t* experts, int64_t selections, const int32_t* offsets, int32_t* row_of,
                 int32_t* source) {
  __shared__ int shared[kOrderThreads / kWarpSize];
  const WarpPart part(selections);
  int next = offsets[blockIdx.x] + count_before(experts, part, shared).x;
  const int lane = threadIdx.x % kWarpSize;
  for_selections(experts, part, static_cast<int32_t>(blockIdx.x), [&](int64_t i, unsigned own) {
    if (!__any_sync(kAllLanes, own != 0)) return;
    int inclusive = __popc(own);
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, inclusive, offset);
      if (lane >= offset) inclusive += other;
    }
    int row = next + inclusive - __popc(own);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((own >> j & 1u) == 0) continue;
      row_of[i + j] = row;
      source[row++] = static_cast<int32_t>(i + j);
    }
    next += __shfl_sync(kAllLanes, inclusive, kWarpSize - 1);
  });
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(const T* x, const int32_t* source, int32_t topk, T* rows, int64_t cols) {
  const int64_t r = blockIdx.x;
  const int32_t from = source[r];
  for (int64_t c = threadIdx.x * 8; c < cols; c += kThreads * 8) {
    const Vec8<T> values =
        from < 0 ? zero_vec8<T>() : load_vec8<kAligned>(x + int64_t{from / topk} * cols + c, cols - c);
    store_vec8<kAligned>(values, rows + r * cols + c, cols - c);
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    unpermute_kernel(const T* rows, const int32_t* row_of, int32_t topk, const T* addend, const float* gate,
                     T* y, int64_t cols) {
  const int64_t t = blockIdx.x;
  const float factor = gate != nullptr ? sigmoid<float>(gate[t]) : 1.0f;
  for (int64_t c = threadIdx.x * 8; c < cols; c += kThreads * 8) {
    float sums[8] = {};
    if (addend != nullptr) {
      const Vec8<T> values = load_vec8<kAligned>(addend + t * cols + c, cols - c);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] = factor * values.get(j);
    }
    for (int slot = 0; slot < topk; ++slot) {
      const int64_t row = row_of[t * topk + slot];
      if (row < 0) continue;
      const Vec8<T> values = load_vec8<kAligned>(rows + row * cols + c, cols - c);
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[j] += values.get(j);
    }
    Vec8<T> result;
#pragma unroll
    for (int j = 0; j < 8; j += 2) result.set_pair(j, sums[j], sums[j + 1]);
    store_vec8<kAligned>(result, y + t * cols + c, cols - c);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gate_backward_kernel(const T* addend, const float* gate, const T* dy, T* d_addend, float* d_gate,
                         int64_t cols) {
  __shared__ float shared[32];
  const int64_t t = blockIdx.x;
  const float factor = sigmoid<float>(gate[t]);
  float along = 0.0f;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const int64_t i = t * cols + c;
    const float d = load_float(dy + i);
    along += d * load_float(addend + i);
    store_float(d_addend + i, factor * d);
  }
  along = block_sum(along, shared);
  if (threadIdx.x == 0) d_gate[t] = along * factor * (1.0f - factor);
}

/// Calls fn(T*) with a null pointer of the device type.
template <class Fn>
void visit_rows(DType dtype, Fn&& fn) {
  visit_high_precision(
      dtype, [&](auto zero) { fn(static_cast<typename DeviceType<decltype(zero)>::type*>(nullptr)); });
}

bool has_vectors(std::initializer_list<Tensor> tensors, int64_t cols) {
  bool aligned = cols % 8 == 0;
  for (const Tensor& tensor : tensors) aligned = aligned && (!tensor || is_aligned(tensor.data, 16));
  return aligned;
}

}  // namespace

void expert_rows(const Context& context, const ExpertRows& a) {
  const int64_t experts = a.offsets.numel() - 1, rows = a.source.numel();
  TE_CHECK(is_aligned(a.experts.data, 16), "expert_rows: experts must be aligned to 16 bytes");
  const auto* selected = a.experts.as<int32_t>();
  auto* const offsets = a.offsets.as<int32_t>();
  const auto blocks = static_cast<unsigned>(experts);
  count_kernel<<<blocks, kOrderThreads, 0, cuda_stream(context)>>>(selected, a.experts.numel(), offsets + 1);
  TE_CUDA_CHECK_LAUNCH();
  offsets_kernel<<<1, kOrderThreads, 0, cuda_stream(context)>>>(offsets, experts,
                                                                static_cast<int32_t>(a.alignment));
  TE_CUDA_CHECK_LAUNCH();
  fill_kernel<<<ceil_div(std::max(rows, a.experts.numel()), kThreads), kThreads, 0, cuda_stream(context)>>>(
      a.source.as<int32_t>(), rows, a.row_of.as<int32_t>(), a.experts.numel());
  TE_CUDA_CHECK_LAUNCH();
  place_kernel<<<blocks, kOrderThreads, 0, cuda_stream(context)>>>(
      selected, a.experts.numel(), offsets, a.row_of.as<int32_t>(), a.source.as<int32_t>());
  TE_CUDA_CHECK_LAUNCH();
}

void permute(const Context& context, const Permute& a) {
  const int64_t cols = a.x.cols();
  const auto blocks = static_cast<unsigned>(a.source.numel());
  if (blocks == 0) return;  // a rank of expert parallelism may send or receive nothing
  visit_rows(a.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    auto* const kernel =
        has_vectors({a.x, a.rows}, cols) ? permute_kernel<T, true> : permute_kernel<T, false>;
    kernel<<<blocks, kThreads, 0, cuda_stream(context)>>>(a.x.as<T>(), a.source.as<int32_t>(),
                                                          static_cast<int32_t>(a.topk), a.rows.as<T>(), cols);
  });
  TE_CUDA_CHECK_LAUNCH();
}

void unpermute(const Context& context, const Unpermute& a) {
  const int64_t cols = a.y.cols();
  const auto blocks = static_cast<unsigned>(a.y.rows());
  if (blocks == 0) return;
  visit_rows(a.y.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool vectors = has_vectors({a.rows, a.addend, a.y}, cols);
    auto* const kernel = vectors ? unpermute_kernel<T, true> : unpermute_kernel<T, false>;
    kernel<<<blocks, kThreads, 0, cuda_stream(context)>>>(
        a.rows.as<T>(), a.row_of.as<int32_t>(), static_cast<int32_t>(a.row_of.cols()), a.addend.as<T>(),
        a.gate.as<float>(), a.y.as<T>(), cols);
  });
  TE_CUDA_CHECK_LAUNCH();
}

void expert_gate_backward(const Context& context, const ExpertGateBackward& a) {
  visit_rows(a.dy.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    gate_backward_kernel<<<static_cast<unsigned>(a.dy.rows()), kThreads, 0, cuda_stream(context)>>>(
        a.addend.as<T>(), a.gate.as<float>(), a.dy.as<T>(), a.d_addend.as<T>(), a.d_gate.as<float>(),
        a.dy.cols());
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
