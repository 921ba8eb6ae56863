// Forward pass of the norms in one pass over memory for all outputs: the residual add, y, and y in FP8 rowwise and
// transposed.
//
// Blocks are persistent. A block processes four rows at a time (norm_rows.cuh) and loads the next four before it works
// on the current ones, so that memory stays busy during the reductions. For the transposed output it processes tiles of
// 32 rows: a thread's four rows of a column form one word in shared memory, and after eight iterations the full tile is
// stored as 32 bytes per column, a whole memory sector.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"
#include "kernels/norm/norm_rows.cuh"

namespace te::kernels::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kRows = 4;  ///< per iteration
constexpr int kIterations = 8;
constexpr int kTileRows = kRows * kIterations;
/// Words of shared memory for 8 columns of a tile: 8 words each, and 4 words of padding that move the next 8 columns to
/// other banks.
constexpr int kColumnsWords = 8 * kIterations + 4;

constexpr int64_t kMaxHidden = 1024 * 8;
constexpr int kOtherSharedBytes = 7 * 1024;  ///< of a block's shared memory

using RowsParams = NormForwardParams<bf16>;

/// A thread's part: eight columns of all rows of its block.
template <NormKind kKind, bool kFp8, bool kDelta>
class RowsThread {
 public:
  static constexpr bool kLayer = kKind == NormKind::layer;
  struct Rows {
    Vec8<bf16> x[kRows];
    Vec8<bf16> delta[kDelta ? kRows : 1];
  };

  __device__ __forceinline__ RowsThread(const RowsParams& params, typename BlockSums<kRows>::Shared& shared)
      : p(params), block(shared), column(int64_t{threadIdx.x} * 8), owns(column < params.hidden) {
    const int64_t valid = owns ? 8 : 0;
    gamma = load_vec8<true>(p.gamma + column, valid);
    if constexpr (kLayer) beta = load_vec8<true>(p.beta + column, valid);
  }

  __device__ __forceinline__ void load(int64_t row, Rows& to) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t offset = (row + i) * p.hidden + column, valid = owns && row + i < p.rows ? 8 : 0;
      to.x[i] = load_vec8<true>(p.x + offset, valid);
      if constexpr (kDelta) to.delta[i] = load_vec8<true>(p.delta + offset, valid);
    }
  }

  /// Residual add; its rounded result is normalized.
  __device__ __forceinline__ void add(int64_t row, Rows& rows) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      Vec8<bf16>& x = rows.x[i];
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        x.set_pair(j, x.get(j) + rows.delta[i].get(j), x.get(j + 1) + rows.delta[i].get(j + 1));
      if (owns && row + i < p.rows) x.store_aligned(p.sum + (row + i) * p.hidden + column);
    }
  }

  __device__ __forceinline__ void find_statistics(int64_t row, Rows& rows) {
    const float hidden = static_cast<float>(p.hidden);
    if constexpr (kLayer) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        mean[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) mean[i] += rows.x[i].get(j);
        rows.x[i].clobber_registers();
      }
      block.sum(mean);
#pragma unroll
      for (int i = 0; i < kRows; ++i) mean[i] /= hidden;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rstd[i] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float deviation = kLayer ? rows.x[i].get(j) - mean[i] : rows.x[i].get(j);
        rstd[i] += deviation * deviation;
      }
      if (!owns) rstd[i] = 0.0f;  // zeros also deviate from the mean
      rows.x[i].clobber_registers();
    }
    block.sum(rstd);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      rstd[i] = 1.0f / sqrtf(rstd[i] / hidden + p.eps);
      if (threadIdx.x != 0 || row + i >= p.rows) continue;
      p.rstd[row + i] = rstd[i];
      if constexpr (kLayer) p.mean[row + i] = mean[i];
    }
  }

  /// Normalizes the rows and writes the requested outputs. Transposed bytes go to shared memory, as word `iteration` of
  /// each column.
  __device__ __forceinline__ void write(int64_t row, Rows& rows, float scale, NormFp8Sums& sums,
                                        uint32_t* columns, int iteration) {
    uint2 bytes[kRows] = {};
    if (!owns) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Vec8<bf16>& x = rows.x[i];
      Vec8<bf16> y;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        float value[2];
#pragma unroll
        for (int k = 0; k < 2; ++k)
          value[k] = norm_element(kLayer, x.get(j + k), kLayer ? mean[i] : 0.0f, rstd[i],
                                  norm_gain<kKind>(gamma.get(j + k)), kLayer ? beta.get(j + k) : 0.0f);
        y.set_pair(j, value[0], value[1]);
      }
      if (row + i >= p.rows) continue;
      const int64_t offset = (row + i) * p.hidden + column;
      if (p.y != nullptr) y.store_aligned(p.y + offset);
      if constexpr (kFp8) {
        bytes[i] = sums.quantize<DType::e4m3>(p.fp8, y, scale);
        if (p.fp8.rowwise != nullptr) *reinterpret_cast<uint2*>(p.fp8.rowwise + offset) = bytes[i];
      }
    }
    gamma.clobber_registers();
    if constexpr (kLayer) beta.clobber_registers();
    if constexpr (kFp8) {
      if (p.columnwise != nullptr) put_columns(bytes, columns + threadIdx.x * kColumnsWords, iteration);
    }
  }

  /// Stores the tile at `row` from shared memory to the transposed output, 16 bytes per thread. All threads of the
  /// block must call it.
  __device__ __forceinline__ void write_columns(int64_t row, const uint32_t* columns) const {
    __syncthreads();
    for (int64_t unit = threadIdx.x; unit < 2 * p.hidden; unit += blockDim.x) {
      const int64_t c = unit / 2, r = row + 16 * (unit % 2);
      if (r >= p.rows) continue;
      uint4 word = *reinterpret_cast<const uint4*>(columns + c / 8 * kColumnsWords + c % 8 * kIterations +
                                                   4 * (unit % 2));
      const int swap = static_cast<int>(c / 64 % 4);
      if (swap & 1) word = {word.y, word.x, word.w, word.z};
      if (swap & 2) word = {word.z, word.w, word.x, word.y};
      *reinterpret_cast<uint4*>(p.columnwise + c * p.rows + r) = word;
    }
  }

 private:
  /// Writes the bytes of four rows and eight columns as eight words of four rows each. The index of the word within a
  /// column is permuted by thread, to avoid bank conflicts on both sides of the exchange.
  __device__ __forceinline__ void put_columns(const uint2 (&bytes)[kRows], uint32_t* to,
                                              int iteration) const {
    const int place = (iteration & 4) + ((iteration ^ static_cast<int>(threadIdx.x / 8)) & 3);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t row[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) row[i] = half == 0 ? bytes[i].x : bytes[i].y;
      uint32_t column[4];
      transpose_4x4(row, column);
      uint32_t* const words = to + half * 4 * kIterations + place;
#pragma unroll
      for (int j = 0; j < 4; ++j) words[j * kIterations] = column[j];
    }
  }

  const RowsParams& p;
  BlockSums<kRows> block;
  const int64_t column;
  const bool owns;
  Vec8<bf16> gamma, beta;
  float mean[kRows], rstd[kRows];
};

/// First row of a block's iteration: tiles of kTileRows are assigned to the blocks round-robin.
__device__ __forceinline__ int64_t row_of_iteration(int64_t iteration) {
  return (blockIdx.x + iteration / kIterations * gridDim.x) * kTileRows + iteration % kIterations * kRows;
}

/// kAhead: the next iteration's loads are in flight during the current one. Rows of more than 512 threads have too few
/// registers for that.
template <NormKind kKind, bool kFp8, bool kDelta, bool kAhead>
__global__ void __launch_bounds__(kAhead ? 512 : 1024, 1)
    norm_forward_rows_kernel(const __grid_constant__ RowsParams p) {
  using Thread = RowsThread<kKind, kFp8, kDelta>;
  extern __shared__ uint4 dynamic[];
  uint32_t* columns = reinterpret_cast<uint32_t*>(dynamic);
  __shared__ typename BlockSums<kRows>::Shared shared;
  wait_on_dependent_grids();
  launch_dependent_grids();
  Thread thread(p, shared);
  NormFp8Sums sums;
  const float scale = p.fp8.scale != nullptr ? *p.fp8.scale : 1.0f;
  typename Thread::Rows rows, next;
  if constexpr (kAhead) thread.load(row_of_iteration(0), next);
  for (int64_t iteration = 0; row_of_iteration(iteration) < p.rows; ++iteration) {
    const int64_t row = row_of_iteration(iteration);
    if constexpr (kAhead) rows = next;
    thread.load(row_of_iteration(kAhead ? iteration + 1 : iteration), kAhead ? next : rows);
    if constexpr (kDelta) thread.add(row, rows);
    thread.find_statistics(row, rows);
    thread.write(row, rows, scale, sums, columns, static_cast<int>(iteration % kIterations));
    const bool tile_is_full = iteration % kIterations == kIterations - 1 || row + kRows >= p.rows;
    if (kFp8 && p.columnwise != nullptr && tile_is_full)
      thread.write_columns(row - iteration % kIterations * kRows, columns);
  }
  if constexpr (kFp8) {
    sums.unpack_amax();
    sums.finish(p.fp8, scale, p.rows * p.hidden);
  }
}

using Kernel = void (*)(RowsParams);

template <NormKind kKind, bool kFp8, bool kDelta>
Kernel kernel_of(bool ahead) {
  return ahead ? norm_forward_rows_kernel<kKind, kFp8, kDelta, true>
               : norm_forward_rows_kernel<kKind, kFp8, kDelta, false>;
}
template <NormKind kKind, bool kFp8>
Kernel kernel_of(bool delta, bool ahead) {
  return delta ? kernel_of<kKind, kFp8, true>(ahead) : kernel_of<kKind, kFp8, false>(ahead);
}
template <NormKind kKind>
Kernel kernel_of(bool fp8, bool delta, bool ahead) {
  return fp8 ? kernel_of<kKind, true>(delta, ahead) : kernel_of<kKind, false>(delta, ahead);
}

size_t tile_bytes(int64_t hidden) {
  return static_cast<size_t>(hidden / 8 * kColumnsWords) * sizeof(uint32_t);
}

/// Launches as many blocks as can be resident, so that each processes several tiles.
void launch(const Context& context, const RowsParams& p, int num_sms) {
  const int threads = static_cast<int>(ceil_div(p.hidden, 8 * kWarpSize)) * kWarpSize;
  const bool fp8 = p.fp8.wanted, delta = p.delta != nullptr, ahead = threads <= 512;
  const Kernel kernel = p.layer           ? kernel_of<NormKind::layer>(fp8, delta, ahead)
                        : p.zero_centered ? kernel_of<NormKind::rms_zero_centered>(fp8, delta, ahead)
                                          : kernel_of<NormKind::rms>(fp8, delta, ahead);
  const size_t shared = p.columnwise != nullptr ? tile_bytes(p.hidden) : 0;
  allow_shared_memory(context, kernel, shared);
  int blocks = 0;
  TE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared));
  const int64_t resident = int64_t{num_sms} * std::max(blocks, 1);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(resident, ceil_div(p.rows, kTileRows)));
  if (grid == 0) return;
  launch_dependent(context, kernel, grid, threads, shared, p.rows <= kLaunchBoundRows, p);
}

}  // namespace

bool norm_forward_rows(const Context& context, const NormForward& a) {
  const Fp8Output& out = a.y_fp8;
  const bool fits =
      a.x.dtype == DType::bf16 && a.x.cols() % 8 == 0 && a.x.cols() <= kMaxHidden &&
      all_aligned(16, {a.x.data, a.delta.data, a.sum.data, a.gamma.data, a.beta.data, a.y.data});
  const bool fits_fp8 =
      (!out.rowwise || (out.rowwise.dtype == DType::e4m3 && is_aligned(out.rowwise.data, 8))) &&
      (!out.columnwise || (out.columnwise.dtype == DType::e4m3 && is_aligned(out.columnwise.data, 16)));
  if (!fits || !fits_fp8) return false;
  // If the tile does not fit into shared memory, or its 16-byte runs would be unaligned, a separate kernel writes the
  // transposed output.
  const int max_bytes = device_caps(context).shared_bytes - kOtherSharedBytes;
  const bool fused = a.x.rows() % 16 == 0 && tile_bytes(a.x.cols()) <= static_cast<size_t>(max_bytes);
  RowsParams p = norm_forward_params<bf16>(a);
  if (!fused) p.columnwise = nullptr;
  launch(context, p, sm_count(context));
  if (out.columnwise && !fused) norm_columnwise(context, a);
  return true;
}

}  // namespace te::kernels::cuda
