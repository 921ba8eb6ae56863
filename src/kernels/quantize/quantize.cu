// Quantization on the GPU: one pass over x in tiles (fp8_tile.cuh).
#include "kernels/quantize/fp8_tile.cuh"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

static_assert(kTileRows == kColumnSumRows, "quantize_scratch_elements counts one partial sum per tile row");

template <class T, DType kFormat, bool kAligned, bool kRequantize>
__global__ void __launch_bounds__(kTileThreads,
                                  kRequantize ? kRequantizeBlocks<T, kAligned> : kTileBlocks<T, kAligned>)
    quantize_kernel(const T* x, const __grid_constant__ Fp8TileTarget target) {
  __shared__ Fp8TileShared shared;
  for_tiles<kRequantize>(target, shared, [&](unsigned tile) {
    const TileCoords at = tile_coords(tile, target.cols);
    Vec8<T> values[kThreadRows];
    load_tile<kAligned>(x, target.cols, target.rows, at.row, at.col, target.cols, values);
    Fp8TileWriter<T, kFormat, kAligned, kRequantize> writer(target, shared);
    writer.write(values, at.row, at.col, target.cols);
    writer.finish(tile == 0);
  });
}

/// 32 columns per block, with the rows divided among 8 groups of threads.
template <class T>
__global__ void add_partial_sums_kernel(const float* partial, int64_t blocks, int64_t cols, T* sums) {
  __shared__ float strand[8][kWarpSize];
  const int64_t col = int64_t{blockIdx.x} * kWarpSize + threadIdx.x;
  float sum = 0.0f;
  if (col < cols)
    for (int64_t b = threadIdx.y; b < blocks; b += 8) sum += partial[b * cols + col];
  strand[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
#pragma unroll
  for (int y = 1; y < 8; ++y) sum += strand[y][threadIdx.x];
  store_float(sums + col, load_float(sums + col) + sum);
}

template <bool kAligned>
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(const uint8_t* x, int64_t rows, int64_t cols, uint8_t* out) {
  __shared__ Fp8TileShared shared;
  const int64_t tiles_across = (cols + kTileCols - 1) / kTileCols;
  const int64_t tile_row = blockIdx.x / tiles_across * kTileRows;
  const int64_t tile_col = blockIdx.x % tiles_across * kTileCols;
  const int64_t row = tile_row + threadIdx.x / 8 * kThreadRows, col = tile_col + threadIdx.x % 8 * 8;
  uint2 bytes[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    bytes[i] = make_uint2(0, 0);
    if (row + i >= rows || col >= cols) continue;
    const uint8_t* const from = x + (row + i) * cols + col;
    if constexpr (kAligned) {
      bytes[i] = *reinterpret_cast<const uint2*>(from);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t byte = col + j < cols ? uint32_t{from[j]} << (j % 4 * 8) : 0u;
        (j < 4 ? bytes[i].x : bytes[i].y) |= byte;
      }
    }
  }
  store_transposed<kAligned>(bytes, out, rows, tile_row, tile_col, cols, shared);
}

/// Transposes matrices whose rows are multiples of 16 bytes with wider accesses: a tile has 128 x 128 bytes, of which a
/// thread has 4 x 16, and both sides access full 128-byte lines.
__global__ void __launch_bounds__(kTileThreads, 4)
    transpose_wide_kernel(const uint8_t* x, int64_t rows, int64_t cols, uint8_t* out) {
  constexpr int kWideCols = 128, kUnits = kTileRows / 16;
  __shared__ uint4 transposed[kWideCols * kUnits];
  const int64_t tiles_across = (cols + kWideCols - 1) / kWideCols;
  const int64_t tile_row = blockIdx.x / tiles_across * kTileRows;
  const int64_t tile_col = blockIdx.x % tiles_across * kWideCols;
  const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
  const int64_t row = tile_row + ty * kThreadRows, col = tile_col + tx * 16;
  uint4 bytes[kThreadRows];
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    bytes[i] = make_uint4(0, 0, 0, 0);
    if (row + i < rows && col < cols) bytes[i] = *reinterpret_cast<const uint4*>(x + (row + i) * cols + col);
  }
  // The units of a column are permuted as in store_transposed(), by the column's group of sixteen.
  uint32_t* const words = reinterpret_cast<uint32_t*>(transposed);
  const int place = ((ty / 4) ^ tx) * 4 + ty % 4;
#pragma unroll
  for (int quarter = 0; quarter < 4; ++quarter) {
    uint32_t part[kThreadRows], column[4];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i)
      part[i] = quarter == 0   ? bytes[i].x
                : quarter == 1 ? bytes[i].y
                : quarter == 2 ? bytes[i].z
                               : bytes[i].w;
    transpose_4x4(part, column);
    uint32_t* const to = words + (tx * 16 + quarter * 4) * (kTileRows / 4) + place;
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j * (kTileRows / 4)] = column[j];
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < kWideCols * kUnits / kTileThreads; ++pass) {
    const int index = static_cast<int>(threadIdx.x) + pass * kTileThreads;
    const int column = index / kUnits, unit = index % kUnits;
    const int64_t c = tile_col + column, r = tile_row + unit * 16;
    if (c >= cols || r >= rows) continue;
    *reinterpret_cast<uint4*>(out + c * rows + r) = transposed[column * kUnits + (unit ^ (column / 16))];
  }
}

bool is_aligned_for(const Tensor& x, const Fp8TileTarget& target) {
  return is_tile_aligned(target) && is_aligned(x.data, 16);
}

void launch_quantize(const Context& context, const Tensor& x, const Fp8TileTarget& target, DType format,
                     unsigned blocks) {
  dispatch_tile(x.dtype, format, is_aligned_for(x, target), [&]<class T, DType kFormat, bool kAligned>() {
    quantize_kernel<T, kFormat, kAligned, false>
        <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(x.as<T>(), target);
  });
  TE_CUDA_CHECK_LAUNCH();
}

void launch_requantize_kernel(const Context& context, const Tensor& x, const Fp8TileTarget& target,
                              const Fp8Output& out) {
  dispatch_tile(
      x.dtype, tile_format(out), is_aligned_for(x, target), [&]<class T, DType kFormat, bool kAligned>() {
        launch_requantize<kRequantizeBlocks<T, kAligned>>(
            context, out, target.tiles, quantize_kernel<T, kFormat, kAligned, true>, x.as<T>(), target);
      });
}

}  // namespace

void add_partial_sums(const Context& context, const float* partial, int64_t blocks, int64_t cols,
                      const Tensor& sums) {
  visit_grad(sums.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    add_partial_sums_kernel<T><<<ceil_div(cols, kWarpSize), dim3(kWarpSize, 8), 0, cuda_stream(context)>>>(
        partial, blocks, cols, sums.as<T>());
  });
  TE_CUDA_CHECK_LAUNCH();
}

void quantize(const Context& context, const Quantize& args) {
  if (args.x.numel() == 0) return;
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const DType format = tile_format(args.out);
  float* const partial = args.dbias ? args.scratch.as<float>() : nullptr;
  quantize_tiles(
      context, args.out, partial, rows, cols, tile_count(rows, cols),
      [&](const Fp8TileTarget& target, unsigned blocks) {
        launch_quantize(context, args.x, target, format, blocks);
      },
      [&](const Fp8TileTarget& target) { launch_requantize_kernel(context, args.x, target, args.out); });
  if (args.dbias) add_partial_sums(context, partial, ceil_div(rows, kTileRows), cols, args.dbias);
}

void requantize(const Context& context, const Tensor& x, const Fp8Output& out) {
  if (out.requantize.state == nullptr || x.numel() == 0) return;
  if (out.requantize.all_reduce_amax) out.requantize.all_reduce_amax(context);
  const unsigned tiles = tile_count(x.rows(), x.cols());
  launch_requantize_kernel(context, x, requantize_target(out, x.rows(), x.cols(), tiles), out);
}

void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  const int64_t rows = x.rows(), cols = x.cols();
  const unsigned tile_rows = ceil_div(rows, kTileRows);
  const cudaStream_t stream = cuda_stream(context);
  if (rows % 16 == 0 && cols % 16 == 0 && is_aligned(x.data, 16) && is_aligned(out.data, 16)) {
    transpose_wide_kernel<<<tile_rows * ceil_div(cols, 128), kTileThreads, 0, stream>>>(
        x.as<uint8_t>(), rows, cols, out.as<uint8_t>());
  } else {
    const bool aligned = rows % 16 == 0 && cols % 8 == 0 && is_aligned(x.data, 8) && is_aligned(out.data, 16);
    const auto kernel = aligned ? transpose_kernel<true> : transpose_kernel<false>;
    kernel<<<tile_rows * ceil_div(cols, kTileCols), kTileThreads, 0, stream>>>(x.as<uint8_t>(), rows, cols,
                                                                               out.as<uint8_t>());
  }
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
