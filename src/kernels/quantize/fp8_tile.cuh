// FP8 output in tiles, shared by quantize and by the kernels that fuse quantization.
//
// A block of 256 threads processes a tile of 128 rows and 64 columns; thread (tx = tid % 8, ty = tid / 8) holds the 4 x
// 8 values at row 4 ty, column 8 tx, as four Vec8. Values outside of the matrix are zeros, which affect neither amax
// nor counters nor sums. Rowwise bytes are stored from registers, 8 at a time. For the transposed output, each thread
// transposes its 4 x 8 bytes into words of four rows; these are exchanged through shared memory and stored as 16-byte
// runs of rows, 128 bytes per column. The 16-byte units of a column are permuted (xor with the column's group of
// eight), so that neither side of the exchange has bank conflicts.
//
// A quantization that computes or corrects its scale (fp8_output.h, Fp8Requantize) is launched twice: quantize_tiles().
// The second launch's kernel is the first one's with kRequantize. It has about as many blocks as can be resident; each
// reads the amax that the first launch found, and either exits or processes its share of the tiles, starting with the
// last ones, which may still be cached. It is a separate instantiation because a loop and a choice of scales would cost
// the first one registers.
//
// The second launch should be as cheap as possible when no requantization is needed. Its blocks therefore start while
// the first launch ends (programmatic dependent launch: launch_dependent_grids(), finalize_scale(),
// launch_requantize()), read one word and synchronize with no other block. The amax is double-buffered, so no block
// writes the slot that is being read.
#pragma once

#include <algorithm>

#include "kernels/common/cuda_common.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/vec8.cuh"
#include "kernels/quantize/requantize.h"
#include "kernels/scale_update/scale_formula.h"

namespace te::kernels {

constexpr int kTileRows = 128;
constexpr int kTileCols = 64;
constexpr int kTileThreads = 256;
constexpr int kThreadRows = 4;
constexpr int kTileWarps = kTileThreads / kWarpSize;
/// Blocks per SM to keep resident. Without this bound, the compiler keeps every unpacked value in its own register, and
/// too few loads are in flight to saturate memory bandwidth.
template <class T, bool kAligned>
constexpr int kTileBlocks = !kAligned        ? 1
                            : sizeof(T) == 2 ? 4
                                             : 2;
/// Blocks per SM of the second launch. An additional block costs little if the launch exits, and adds bandwidth if it
/// requantizes.
template <class T, bool kAligned>
constexpr int kRequantizeBlocks = kAligned && sizeof(T) == 2 ? 3 : 2;

/// An Fp8Output (and partial column sums) in the form that kernels use; null pointers mean that an output is not
/// requested.
struct Fp8TileTarget {
  uint8_t* rowwise;
  uint8_t* columnwise;
  const float* scale;
  float* scale_inv;
  float* amax;
  Fp8Counters* counters;
  float* partial_sums;  ///< [ceil(rows / kTileRows), cols]
  int64_t rows;
  int64_t cols;
  unsigned tiles;                     ///< tiles that the launch processes, see for_tiles()
  Fp8ScaleFinalization finalization;  ///< of the second launch, which finds its scale there
};

inline Fp8TileTarget tile_target(const Fp8Output& out, float* partial_sums, int64_t rows, int64_t cols,
                                 unsigned tiles) {
  return {out.rowwise.as<uint8_t>(),
          out.columnwise.as<uint8_t>(),
          out.scale,
          out.scale_inv,
          out.amax,
          out.wants_data() ? out.counters : nullptr,
          partial_sums,
          rows,
          cols,
          tiles,
          {}};
}
/// Target of the second launch: only FP8 data, scale_inv and counters.
inline Fp8TileTarget requantize_target(const Fp8Output& out, int64_t rows, int64_t cols, unsigned tiles) {
  Fp8TileTarget target = tile_target(out, nullptr, rows, cols, tiles);
  target.amax = nullptr;
  target.finalization = finalization_of(out);
  return target;
}
/// FP8 format of an output; arbitrary if it has no data.
inline DType tile_format(const Fp8Output& out) {
  return out.rowwise ? out.rowwise.dtype : out.columnwise ? out.columnwise.dtype : DType::e4m3;
}
/// Number of tiles of a [rows, cols] matrix.
inline unsigned tile_count(int64_t rows, int64_t cols) {
  return ceil_div(rows, kTileRows) * ceil_div(cols, kTileCols);
}
/// First row and column of a tile in a matrix with the given number of columns.
struct TileCoords {
  int64_t row, col;
};
__device__ __forceinline__ TileCoords tile_coords(unsigned tile, int64_t cols) {
  const unsigned across = static_cast<unsigned>((cols + kTileCols - 1) / kTileCols);
  return {int64_t{tile / across} * kTileRows, int64_t{tile % across} * kTileCols};
}
/// Whether the aligned kernels' wide stores may be used for this target.
inline bool is_tile_aligned(const Fp8TileTarget& target) {
  return target.cols % 8 == 0 && is_aligned(target.rowwise, 8) &&
         (target.columnwise == nullptr || (target.rows % 16 == 0 && is_aligned(target.columnwise, 16)));
}

struct Fp8TileShared {
  uint4 transposed[kTileCols * kTileRows / 16];
  float sums[kTileWarps][kTileCols];
  uint32_t words[kWarpSize];
  float scale;  ///< of the second launch
};

/// Scale with which the second launch quantizes, or 0. All threads of all blocks must call it before they read anything
/// that was written on the device.
__device__ __forceinline__ float finalize_scale(const Fp8ScaleFinalization& s) {
  wait_on_dependent_grids();
  const float amax = __ldcg(s.found_amax), first = s.scale != nullptr ? __ldcg(s.scale) : 0.0f;
  const float scale = second_scale(s, amax, first);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    finalize_state(s, amax, first, scale);
    if (s.amax != nullptr) atomicMax(reinterpret_cast<unsigned int*>(s.amax), __float_as_uint(amax));
  }
  return scale;
}

/// Body of a kernel: calls work(tile) for the block's tiles; the first launch has one tile per block. All threads must
/// call it.
template <bool kRequantize, class Work>
__device__ __forceinline__ void for_tiles(const Fp8TileTarget& target, Fp8TileShared& shared, Work&& work) {
  if constexpr (!kRequantize) {
    launch_dependent_grids();
    return work(blockIdx.x);
  }
  const float scale = finalize_scale(target.finalization);
  if (scale == 0.0f) return;
  if (threadIdx.x == 0) shared.scale = scale;
  __syncthreads();
  for (unsigned index = blockIdx.x; index < target.tiles;) {
    work(target.tiles - 1 - index);
    index += gridDim.x;
    if (index < target.tiles) __syncthreads();  // shared memory may be overwritten now
  }
}

/// Writes the bytes of eight values of a row, those of the first `valid`.
template <bool kAligned>
__device__ __forceinline__ void store_bytes(const uint2& bytes, uint8_t* to, int64_t valid) {
  if constexpr (kAligned) {
    if (valid > 0) *reinterpret_cast<uint2*>(to) = bytes;
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (j < valid) to[j] = static_cast<uint8_t>((j < 4 ? bytes.x : bytes.y) >> (j % 4 * 8));
  }
}

/// Counts eight values that were quantized with a scale.
template <DType kFormat, class T>
__device__ __forceinline__ void count_values(const Vec8<T>& x, const uint2& bytes, float scale,
                                             ThreadCounters& counters) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float value = x.get(j);
    const uint32_t word = j < 4 ? bytes.x : bytes.y;
    count_value<kFormat>(value, value * scale, static_cast<uint8_t>(word >> (j % 4 * 8)), counters);
  }
}

struct AllUnits {
  __device__ __forceinline__ bool operator()(int /*unit*/) const { return true; }
};

/// Stores a tile's bytes transposed: bytes[i] holds row 4 ty + i, columns 8 tx ... 8 tx + 7. out is [cols, rows];
/// columns from col_end on are not written, and of the tile's units of 16 rows only those for which wanted(unit) is
/// true. All threads of the block must call it.
template <bool kAligned, class Wanted = AllUnits>
__device__ __forceinline__ void store_transposed(const uint2 (&bytes)[kThreadRows], uint8_t* out,
                                                 int64_t rows, int64_t tile_row, int64_t tile_col,
                                                 int64_t col_end, Fp8TileShared& shared,
                                                 const Wanted& wanted = {}) {
  const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
  uint32_t* const words = reinterpret_cast<uint32_t*>(shared.transposed);
  const int place = ((ty / 4) ^ tx) * 4 + ty % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t row[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) row[i] = half == 0 ? bytes[i].x : bytes[i].y;
    uint32_t column[4];
    transpose_4x4(row, column);
    uint32_t* const to = words + (tx * 8 + half * 4) * (kTileRows / 4) + place;
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j * (kTileRows / 4)] = column[j];
  }
  __syncthreads();
  constexpr int kUnits = kTileRows / 16;
#pragma unroll
  for (int pass = 0; pass < kTileCols * kUnits / kTileThreads; ++pass) {
    const int index = static_cast<int>(threadIdx.x) + pass * kTileThreads;
    const int column = index / kUnits, unit = index % kUnits;
    const uint4 run = shared.transposed[column * kUnits + (unit ^ (column / 8))];
    const int64_t c = tile_col + column, r = tile_row + unit * 16;
    if (c >= col_end || r >= rows || !wanted(unit)) continue;
    uint8_t* const to = out + c * rows + r;
    if constexpr (kAligned) {
      *reinterpret_cast<uint4*>(to) = run;
    } else {
      const uint32_t part[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
      for (int k = 0; k < 16; ++k)
        if (r + k < rows) to[k] = static_cast<uint8_t>(part[k / 4] >> (k % 4 * 8));
    }
  }
  __syncthreads();  // the buffer may be filled again
}

/// Launches the kernel of the second launch, of which kResident blocks are resident per SM. Its blocks start as those
/// of the first launch, the CUDA stream's preceding kernel, exit; after a collective that is not possible.
template <int kResident, class... Params, class... Args>
void launch_requantize(const Context& context, const Fp8Output& out, unsigned tiles,
                       void (*kernel)(Params...), Args&&... args) {
  const unsigned blocks = std::min(tiles, static_cast<unsigned>(kResident * sm_count(context)));
  launch_dependent(context, kernel, blocks, kTileThreads, 0, !out.requantize.all_reduce_amax,
                   std::forward<Args>(args)...);
}

/// Writes a thread's part of tiles to a target. All threads of the block must construct one, call write() for each tile
/// and finish() once.
template <class T, DType kFormat, bool kAligned, bool kRequantize>
class Fp8TileWriter {
 public:
  __device__ __forceinline__ Fp8TileWriter(const Fp8TileTarget& target, Fp8TileShared& shared)
      : target_(target),
        shared_(shared),
        scale_(kRequantize               ? shared.scale
               : target.scale != nullptr ? *target.scale
                                         : 1.0f) {}

  /// values: this thread's rows of the tile at (tile_row, tile_col); columns from col_end on are not written.
  __device__ __forceinline__ void write(Vec8<T> (&values)[kThreadRows], int64_t tile_row, int64_t tile_col,
                                        int64_t col_end) {
    if (target_.amax != nullptr) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) values[i].update_amax(largest_);
    }
    clobber_registers(values);
    if (target_.partial_sums != nullptr) write_sums(values, tile_row, tile_col, col_end);
    if (target_.rowwise == nullptr && target_.columnwise == nullptr) return;
    clobber_registers(values);
    uint2 bytes[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) bytes[i] = quantized(values[i]);
    clobber_registers(values);
    if (target_.counters != nullptr) count(values, bytes);
    if (target_.rowwise != nullptr) write_rows(bytes, tile_row, tile_col, col_end);
    if (target_.columnwise != nullptr)
      store_transposed<kAligned>(bytes, target_.columnwise, target_.rows, tile_row, tile_col, col_end,
                                 shared_);
  }

  /// `first` must be true in exactly one block of the launch.
  __device__ __forceinline__ void finish(bool first) {
    if (target_.amax != nullptr) block_update_amax(Vec8<T>::amax_bits(largest_), target_.amax, shared_.words);
    if (target_.counters != nullptr) add_counts(first);
    if (first && threadIdx.x == 0 && target_.scale_inv != nullptr) *target_.scale_inv = 1.0f / scale_;
  }

 private:
  static __device__ __forceinline__ void clobber_registers(Vec8<T> (&values)[kThreadRows]) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) values[i].clobber_registers();
  }

  __device__ __forceinline__ uint2 quantized(const Vec8<T>& row) const {
    return to_fp8x8<kFormat>(row, scale_);
  }

  __device__ __forceinline__ void count(const Vec8<T> (&values)[kThreadRows],
                                        const uint2 (&bytes)[kThreadRows]) {
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) count_values<kFormat>(values[i], bytes[i], scale_, counters_);
  }

  __device__ __forceinline__ void write_rows(const uint2 (&bytes)[kThreadRows], int64_t tile_row,
                                             int64_t tile_col, int64_t col_end) const {
    const int64_t row = tile_row + threadIdx.x / 8 * kThreadRows, col = tile_col + threadIdx.x % 8 * 8;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (row + i >= target_.rows) continue;
      store_bytes<kAligned>(bytes[i], target_.rowwise + (row + i) * target_.cols + col, col_end - col);
    }
  }

  /// Writes the tile's column sums, in a fixed order: over a thread's rows, the warp, and the block.
  __device__ __forceinline__ void write_sums(const Vec8<T> (&values)[kThreadRows], int64_t tile_row,
                                             int64_t tile_col, int64_t col_end) {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float sum = values[0].get(j);
#pragma unroll
      for (int i = 1; i < kThreadRows; ++i) sum += values[i].get(j);
      sum += __shfl_xor_sync(kAllLanes, sum, 8);
      sum += __shfl_xor_sync(kAllLanes, sum, 16);
      if (lane < 8) shared_.sums[warp][lane * 8 + j] = sum;
    }
    __syncthreads();
    if (threadIdx.x < kTileCols && tile_col + threadIdx.x < col_end) {
      float sum = shared_.sums[0][threadIdx.x];
#pragma unroll
      for (int w = 1; w < kTileWarps; ++w) sum += shared_.sums[w][threadIdx.x];
      target_.partial_sums[tile_row / kTileRows * target_.cols + tile_col + threadIdx.x] = sum;
    }
    __syncthreads();
  }

  /// One atomic per block and counter, because thousands of blocks share the three addresses.
  __device__ __forceinline__ void add_counts(bool first) {
    const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
    const unsigned saturated = __reduce_add_sync(kAllLanes, counters_.saturated);
    const unsigned flushed = __reduce_add_sync(kAllLanes, counters_.flushed);
    if (lane == 0) shared_.words[warp] = saturated, shared_.words[kTileWarps + warp] = flushed;
    __syncthreads();
    if (threadIdx.x < 2) {
      unsigned sum = 0;
#pragma unroll
      for (int w = 0; w < kTileWarps; ++w) sum += shared_.words[threadIdx.x * kTileWarps + w];
      unsigned long long* const to =
          threadIdx.x == 0 ? &target_.counters->saturated : &target_.counters->flushed;
      if (sum > 0) atomicAdd(to, static_cast<unsigned long long>(sum));
    }
    if (first && threadIdx.x == 0)
      atomicAdd(&target_.counters->total, static_cast<unsigned long long>(target_.rows * target_.cols));
  }

  const Fp8TileTarget& target_;
  Fp8TileShared& shared_;
  const float scale_;
  uint32_t largest_ = 0;
  ThreadCounters counters_;
};

/// Loads this thread's four rows of the tile at (tile_row, tile_col) of a matrix whose rows are `stride` elements
/// apart; columns from col_end on and rows from `rows` on are zeros.
template <bool kAligned, class T>
__device__ __forceinline__ void load_tile(const T* x, int64_t stride, int64_t rows, int64_t tile_row,
                                          int64_t tile_col, int64_t col_end, Vec8<T> (&values)[kThreadRows]) {
  const int64_t row = tile_row + threadIdx.x / 8 * kThreadRows, col = tile_col + threadIdx.x % 8 * 8;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i)
    values[i] = load_vec8<kAligned>(x + (row + i) * stride + col, row + i < rows ? col_end - col : 0);
}

template <bool kAligned, class T>
__device__ __forceinline__ void store_tile(const Vec8<T> (&values)[kThreadRows], T* out, int64_t stride,
                                           int64_t rows, int64_t tile_row, int64_t tile_col,
                                           int64_t col_end) {
  const int64_t row = tile_row + threadIdx.x / 8 * kThreadRows, col = tile_col + threadIdx.x % 8 * 8;
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i)
    store_vec8<kAligned>(values[i], out + (row + i) * stride + col, row + i < rows ? col_end - col : 0);
}

/// Launches the kernels that quantize `tiles` tiles, each built on for_tiles(): launch(target, blocks), and with
/// launch_requantize() the second one, which must write nothing but its target.
template <class Launch, class Requantize>
void quantize_tiles(const Context& context, const Fp8Output& out, float* partial_sums, int64_t rows,
                    int64_t cols, unsigned tiles, Launch&& launch, Requantize&& requantize) {
  launch(tile_target(first_quantization(out), partial_sums, rows, cols, tiles), tiles);
  if (out.requantize.state == nullptr) return;
  if (out.requantize.all_reduce_amax) out.requantize.all_reduce_amax(context);
  requantize(requantize_target(out, rows, cols, tiles));
}

/// Calls launch.template operator()<T, kFormat, kAligned>() for run-time values.
template <class T, class Launch>
void dispatch_tile(DType format, bool aligned, Launch&& launch) {
  if (format == DType::e4m3) {
    aligned ? launch.template operator()<T, DType::e4m3, true>()
            : launch.template operator()<T, DType::e4m3, false>();
  } else {
    aligned ? launch.template operator()<T, DType::e5m2, true>()
            : launch.template operator()<T, DType::e5m2, false>();
  }
}
/// FP16 values are never quantized, so that their kernels need no second format.
template <class Launch>
void dispatch_tile(DType type, DType format, bool aligned, Launch&& launch) {
  if (type == DType::f32) return dispatch_tile<float>(format, aligned, launch);
  if (type == DType::f16) {
    TE_CHECK(format == DType::e4m3, "FP16 values cannot be quantized to {}", dtype_name(format));
    return aligned ? launch.template operator()<__half, DType::e4m3, true>()
                   : launch.template operator()<__half, DType::e4m3, false>();
  }
  dispatch_tile<__nv_bfloat16>(format, aligned, launch);
}

}  // namespace te::kernels
