// SwiGLU of experts and its gradient with quantization to scales of vectors in the same pass, in BF16: the values are
// rounded to BF16 and quantized (group_tile.cuh), but not stored. All results equal separate passes.
//
// Forward, a block has one tile. Backward, a block has all tiles of 128 rows, one after another, each with the
// gradients of the gate and of the up projection. The sums for the router's probabilities have the order of
// expert_activation.cu, where a lane sums 8 columns of every 256. Here two lanes share these columns: the second
// continues the sum of the first. Sums wait in shared memory for the tile with the next columns.
#include "kernels/activation/activation_device.cuh"
#include "kernels/moe/expert_activation_gradient.cuh"
#include "kernels/moe/moe_cuda.h"
#include "kernels/quantize/group_tile.cuh"

namespace te::kernels::cuda {
namespace {

using namespace group_tile;

constexpr ActivationKind kKind = ActivationKind::swiglu;
constexpr int kBatch = 4;  ///< rows that a thread loads at a time
using Value = __nv_bfloat16;

struct Input {
  const Value *x, *dy;  ///< dy: backward
  const int32_t* source;
  const float* probs;
  int64_t ffn;
};

/// Lanes 0 to 15: selection and probability of the warp's rows; of rows without a selection -1 and 0.
struct RowProbs {
  int32_t from = -1;
  float prob = 0.0f;
  __device__ RowProbs(const Input& in, const ThreadPosition& place, int64_t rows) {
    if (place.lane >= kRows || place.row + place.lane >= rows) return;
    from = in.source[place.row + place.lane];
    if (from >= 0) prob = in.probs[from];
  }
  __device__ __forceinline__ bool used(int i) const { return __shfl_sync(kAllLanes, from, i) >= 0; }
  __device__ __forceinline__ float prob_of(int i) const { return __shfl_sync(kAllLanes, prob, i); }
};

/// This thread's columns of some rows.
struct Batch {
  Quad<Value> gate[kBatch], up[kBatch], dy[kBatch];

  template <bool kBackward>
  __device__ __forceinline__ void load(const Input& in, const ThreadPosition& place, const RowProbs& probs,
                                       int first) {
    const Value* x = in.x + 2 * (place.row + first) * in.ffn + place.col;
    const Value* d = in.dy + (place.row + first) * in.ffn + place.col;
#pragma unroll
    for (int k = 0; k < kBatch; ++k, x += 2 * in.ffn, d += in.ffn) {
      if (probs.used(first + k) && place.inside) {
        gate[k].load(x), up[k].load(x + in.ffn);
        if constexpr (kBackward) dy[k].load(d);
      } else {
        gate[k].clear(), up[k].clear(), dy[k].clear();
      }
    }
  }
};
constexpr int kBatches = kRows / kBatch;
static_assert(kBatches % 2 == 0, "the first rows are in the first of two batches");

template <DType kFormat>
__global__ void __launch_bounds__(kThreads, 3)
    forward_kernel(const __grid_constant__ Input in, const __grid_constant__ Target target) {
  __shared__ Shared shared;
  const auto across = static_cast<unsigned>((in.ffn + kSide - 1) / kSide);
  const ThreadPosition place(target, int64_t{blockIdx.x / across} * kSide,
                             int64_t{blockIdx.x % across} * kSide);
  const RowProbs probs(in, place, target.rows);
  Batch batches[2];
  batches[0].load<false>(in, place, probs, 0);
  Quad<Value> y[kRows];
#pragma unroll
  for (int b = 0; b < kBatches; ++b) {
    if (b + 1 < kBatches) batches[(b + 1) % 2].load<false>(in, place, probs, (b + 1) * kBatch);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int i = b * kBatch + k;
      const Batch& rows = batches[b % 2];
      const float prob = probs.prob_of(i);
      float values[kCols];
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const float x = rows.gate[k].get(j);
        values[j] = activation_value<kKind>(x, rows.up[k].get(j), activation_factor<kKind, Value>(x)) * prob;
      }
      y[i].set(values);
    }
  }
  write_vectors<Value, kFormat>(y, target, place, shared);
}

/// Sums of the lanes of expert_activation.cu for each row of a block.
using RowSums = float[kSide][kWarpSize];

/// Adds dy * value of this thread's columns of its row i.
__device__ __forceinline__ void add_columns(RowSums& sums, const ThreadPosition& place, int i,
                                            const Quad<Value>& dy, const float (&value)[kCols]) {
  const auto lane = static_cast<int>(place.tile_col / kSide % 2) * (kWarpSize / 2) + place.lane / 2;
  float& sum = sums[place.warp * kRows + i][lane];
  const auto add = [&](float from) {
#pragma unroll
    for (int j = 0; j < kCols; ++j) from = fmaf(dy.get(j), value[j], from);
    return from;
  };
  const float first = __shfl_sync(kAllLanes, add(sum), place.lane & ~1), both = add(first);
  __syncwarp();
  if (place.lane % 2 == 1) sum = both;
}

/// `d_up`: of each thread, since registers do not hold both gradients and the loads.
struct BackwardShared {
  Shared tile;
  RowSums sums;
  uint2 d_up[kRows][kThreads];
};

/// Gradients of this thread's row i: of the gate, and of the up projection in shared memory.
__device__ __forceinline__ Quad<Value> row_gradients(const Batch& rows, int k, int i, const RowProbs& probs,
                                                     const ThreadPosition& place, BackwardShared& shared) {
  const float prob = probs.prob_of(i);
  float value[kCols], gates[kCols], ups[kCols];
#pragma unroll
  for (int j = 0; j < kCols; ++j)
    value[j] = gradient<kKind, Value>(rows.gate[k].get(j), rows.up[k].get(j), rows.dy[k].get(j), prob, 0.0f,
                                      gates[j], ups[j]);
  add_columns(shared.sums, place, i, rows.dy[k], value);
  Quad<Value> d_gate, d_up;
  d_gate.set(gates), d_up.set(ups);
  shared.d_up[i][threadIdx.x] = d_up.value;
  return d_gate;
}

/// The same value, unknown to the compiler, which otherwise computes all addresses that depend on it before the loop
/// over tiles and keeps them in registers.
__device__ __forceinline__ int64_t hidden(int64_t row) {
  asm volatile("" : "+l"(row));
  return row;
}

template <DType kFormat>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kernel(const __grid_constant__ Input in, const __grid_constant__ Target target, float* d_probs) {
  extern __shared__ uint4 memory[];
  auto& shared = reinterpret_cast<BackwardShared&>(*memory);
  const int64_t tile_row = int64_t{blockIdx.x} * kSide;
  const ThreadPosition start(target, tile_row, 0);
  const RowProbs probs(in, start, target.rows);
#pragma unroll
  for (int i = 0; i < kRows; ++i) shared.sums[start.warp * kRows + i][start.lane] = 0.0f;
  __syncwarp();
  Batch batches[2];
  batches[0].load<true>(in, start, probs, 0);
  for (int64_t col = 0; col < in.ffn; col += kSide) {
    // 1. Gradients, the loads of the next rows under way; at the end those of the next tile
    const ThreadPosition place(target, hidden(tile_row), col);
    ThreadPosition next(target, hidden(tile_row), col + kSide);
    next.inside = next.inside && col + kSide < in.ffn;
    Quad<Value> values[kRows];
#pragma unroll
    for (int b = 0; b < kBatches; ++b) {
      const bool last = b + 1 == kBatches;
      batches[(b + 1) % 2].load<true>(in, last ? next : place, probs, last ? 0 : (b + 1) * kBatch);
#pragma unroll
      for (int k = 0; k < kBatch; ++k)
        values[b * kBatch + k] = row_gradients(batches[b % 2], k, b * kBatch + k, probs, place, shared);
    }
    // 2. Both tiles of the result
    write_vectors<Value, kFormat>(values, target, place, shared.tile);
#pragma unroll
    for (int i = 0; i < kRows; ++i) values[i].value = shared.d_up[i][threadIdx.x];
    write_vectors<Value, kFormat>(values, target, {target, hidden(tile_row), in.ffn + col}, shared.tile);
  }
  // 3. Gradients of the probabilities
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float sum = warp_sum(shared.sums[start.warp * kRows + i][start.lane]);
    const int32_t from = __shfl_sync(kAllLanes, probs.from, i);
    if (from >= 0 && start.lane == 0) d_probs[from] = sum;
  }
}

template <class Args>
bool suits(const Args& a, const QuantizeGroups& out, int64_t ffn) {
  const Matrix& some = out.rowwise ? out.rowwise : out.columnwise;
  return a.kind == kKind && a.x.dtype == DType::bf16 && some.layout == ScaleLayout::vectors &&
         out.amax == nullptr && out.counters == nullptr && ffn % kSide == 0 && is_aligned(a.x.data, 8) &&
         is_aligned(out.rowwise.values.data, 4) && is_aligned(out.columnwise.values.data, 16);
}

bool is_e4m3(const QuantizeGroups& out) {
  return (out.rowwise ? out.rowwise : out.columnwise).dtype() == DType::e4m3;
}

}  // namespace

bool expert_activation_groups(const Context& context, const ExpertActivation& a) {
  const int64_t rows = a.x.rows(), ffn = a.y.cols();
  if (!suits(a, a.y_groups, ffn)) return false;
  if (rows == 0) return true;
  const Input input{a.x.as<Value>(), nullptr, a.source.as<int32_t>(), a.probs.as<float>(), ffn};
  auto* const kernel = is_e4m3(a.y_groups) ? forward_kernel<DType::e4m3> : forward_kernel<DType::e5m2>;
  kernel<<<ceil_div(rows, kSide) * ceil_div(ffn, kSide), kThreads, 0, cuda_stream(context)>>>(
      input, target_of(a.y_groups, rows, ffn));
  TE_CUDA_CHECK_LAUNCH();
  return true;
}

bool expert_activation_backward_groups(const Context& context, const ExpertActivationBackward& a) {
  const int64_t rows = a.x.rows(), ffn = a.dy.cols();
  if (!suits(a, a.dx_groups, ffn) || !is_aligned(a.dy.data, 8)) return false;
  if (rows == 0) return true;
  const Input input{a.x.as<Value>(), a.dy.as<Value>(), a.source.as<int32_t>(), a.probs.as<float>(), ffn};
  auto* const kernel = is_e4m3(a.dx_groups) ? backward_kernel<DType::e4m3> : backward_kernel<DType::e5m2>;
  allow_shared_memory(context, kernel, sizeof(BackwardShared));
  kernel<<<ceil_div(rows, kSide), kThreads, sizeof(BackwardShared), cuda_stream(context)>>>(
      input, target_of(a.dx_groups, rows, 2 * ffn), a.d_probs.as<float>());
  TE_CUDA_CHECK_LAUNCH();
  return true;
}

}  // namespace te::kernels::cuda
