// Backward pass of the norms that also writes dx in FP8, rowwise and transposed, in the same pass over memory.
//
// A block processes tiles of 32 rows, two rows per iteration. The bytes of a tile are collected in shared memory row by
// row. When the tile is full, a thread reads four columns of sixteen rows, transposes them in registers and writes 16
// bytes per column. The adjacent thread writes the next sixteen rows, so that together they write whole memory sectors.
#include <algorithm>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/norm/norm_backward_rows.cuh"

namespace te::kernels::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr DType kFormat = DType::e5m2;
constexpr int kRows = 2;  ///< per iteration
constexpr int kIterations = 16;
constexpr int kTileRows = kRows * kIterations;
constexpr int kRun = 16;  ///< rows whose bytes are written at once
static_assert(kTileRows == 2 * kRun);
constexpr size_t kOtherSharedBytes = 4 * 1024;

/// Bytes of a tile in shared memory.
class ByteTile {
 public:
  /// Padding between the two runs of rows, so that adjacent threads, which read from both, have no bank conflicts.
  static constexpr int kGap = 64;
  static size_t bytes(int64_t hidden) { return static_cast<size_t>(kTileRows * hidden + kGap); }

  __device__ __forceinline__ ByteTile(void* shared, int64_t hidden)
      : bytes_(static_cast<uint8_t*>(shared)), hidden_(static_cast<int>(hidden)) {}

  __device__ __forceinline__ void put(int row, int column, uint2 eight) const {
    *reinterpret_cast<uint2*>(bytes_ + offset(row) + column) = eight;
  }

  /// Writes the tile, whose rows begin at `first` of `rows`, to out [hidden, rows]. All threads of the block must call
  /// it.
  __device__ __forceinline__ void write_columns(uint8_t* out, int64_t first, int64_t rows) const {
    __syncthreads();
    for (int unit = static_cast<int>(threadIdx.x); unit < hidden_ / 2; unit += static_cast<int>(blockDim.x)) {
      const int run = unit % 2 * kRun, column = unit / 2 * 4;
      if (first + run >= rows) continue;
      uint32_t words[4][4];  // [column][four rows]
#pragma unroll
      for (int quad = 0; quad < 4; ++quad) {
        uint32_t row[4], turned[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          row[i] = *reinterpret_cast<const uint32_t*>(bytes_ + offset(run + 4 * quad + i) + column);
        transpose_4x4(row, turned);
#pragma unroll
        for (int c = 0; c < 4; ++c) words[c][quad] = turned[c];
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
        *reinterpret_cast<uint4*>(out + (column + c) * rows + first + run) =
            make_uint4(words[c][0], words[c][1], words[c][2], words[c][3]);
    }
  }

 private:
  __device__ __forceinline__ int offset(int row) const {
    return row * hidden_ + (row < kRun ? 0 : kGap);
  }
  uint8_t* const bytes_;
  const int hidden_;
};

/// First row of a block's iteration: tiles are assigned to the blocks round-robin.
__device__ __forceinline__ int64_t row_of_iteration(int64_t iteration) {
  return (blockIdx.x + iteration / kIterations * gridDim.x) * kTileRows + iteration % kIterations * kRows;
}

template <NormKind kKind, bool kBias>
__global__ void __launch_bounds__(kAheadThreads, 1)
    norm_backward_tiles(const __grid_constant__ BackwardParams<bf16> p) {
  using Thread = BackwardThread<bf16, kKind, kRows, kBias>;
  launch_dependent_grids();
  __shared__ typename BlockSums<Thread::kSums>::Shared shared;
  extern __shared__ float4 dynamic[];  // sums of dx, then the tile
  Thread thread(p, shared, dynamic);
  const ByteTile tile(dynamic + (kBias ? 2 * blockDim.x : 0), p.hidden);
  NormFp8Sums sums;
  const float scale = *p.fp8.scale;
  typename Thread::Rows rows, next;
  thread.load(row_of_iteration(0), next);
  for (int64_t iteration = 0; row_of_iteration(iteration) < p.rows; ++iteration) {
    const int64_t row = row_of_iteration(iteration);
    const int row_in_tile = static_cast<int>(iteration % kIterations) * kRows;
    rows = next;
    thread.load(row_of_iteration(iteration + 1), next);
    thread.sum(rows);
    thread.write(row, rows, [&](int r, const Vec8<bf16>& dx) {
      const uint2 bytes = sums.quantize<kFormat>(p.fp8, dx, scale);
      const int column = static_cast<int>(threadIdx.x) * 8;
      if (p.fp8.rowwise != nullptr)
        *reinterpret_cast<uint2*>(p.fp8.rowwise + (row + r) * p.hidden + column) = bytes;
      if (p.columnwise != nullptr) tile.put(row_in_tile + r, column, bytes);
    });
    const bool full = row_in_tile + kRows == kTileRows || row + kRows >= p.rows;
    if (p.columnwise != nullptr && full) tile.write_columns(p.columnwise, row - row_in_tile, p.rows);
  }
  thread.write_sums();
  sums.unpack_amax();
  sums.finish(p.fp8, scale, p.rows * p.hidden);
}

using Kernel = void (*)(BackwardParams<bf16>);
template <NormKind kKind>
Kernel kernel_of(bool bias) {
  return bias ? norm_backward_tiles<kKind, true> : norm_backward_tiles<kKind, false>;
}
Kernel kernel_of(NormKind kind, bool bias) {
  switch (kind) {
    case NormKind::layer:
      return kernel_of<NormKind::layer>(bias);
    case NormKind::rms_zero_centered:
      return kernel_of<NormKind::rms_zero_centered>(bias);
    case NormKind::rms:
      break;
  }
  return kernel_of<NormKind::rms>(bias);
}

/// Writing 16-byte runs requires whole runs of rows. Wider rows have neither registers for two rows nor shared memory
/// for a tile.
bool fits(const NormBackward& a) {
  const Fp8Output& out = a.dx_fp8;
  const auto is_format = [](const Tensor& tensor) { return !tensor || tensor.dtype == kFormat; };
  return a.dx.dtype == DType::bf16 && a.dx.cols() % 8 == 0 && a.dx.cols() <= 8 * kAheadThreads &&
         a.dx.rows() % kRun == 0 && out.wants_data() && is_format(out.rowwise) && is_format(out.columnwise) &&
         all_aligned(16, {a.dy.data, a.x.data, a.gamma.data, a.dresidual.data, a.dx.data, a.scratch.data,
                          out.columnwise.data}) &&
         is_aligned(out.rowwise.data, 8);
}

}  // namespace

int norm_backward_fp8(const Context& context, const NormBackward& a) {
  if (!fits(a)) return 0;
  const BackwardParams<bf16> p = backward_params<bf16>(a);
  const bool bias = p.partial_bias != nullptr;
  const Kernel kernel = kernel_of(a.kind, bias);
  const unsigned threads = ceil_div(p.hidden, 8 * kWarpSize) * kWarpSize;
  const size_t shared =
      (bias ? threads * DxSums::kBytes : 0) + (p.columnwise != nullptr ? ByteTile::bytes(p.hidden) : 0);
  if (shared + kOtherSharedBytes > static_cast<size_t>(device_caps(context).shared_bytes)) return 0;
  // Number of blocks for which all blocks have (almost) the same number of tiles.
  const int64_t tiles = ceil_div(p.rows, kTileRows), max_blocks = norm_partial_blocks(p.hidden);
  const auto blocks = static_cast<int>(ceil_div(tiles, ceil_div(tiles, max_blocks)));
  allow_shared_memory(context, kernel, shared);
  kernel<<<blocks, threads, shared, cuda_stream(context)>>>(p);
  TE_CUDA_CHECK_LAUNCH();
  return blocks;
}

}  // namespace te::kernels::cuda
