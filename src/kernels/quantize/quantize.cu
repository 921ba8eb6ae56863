// Quantize on the GPU: one pass over x by tiles (fp8_tile.cuh); one launch for a whole list of tensors.
#include "kernels/quantize/fp8_tile.cuh"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

static_assert(kTileRows == kColumnSumRows, "quantize_scratch_elements counts one partial sum per tile row");

struct QuantizeEntry {
  const void* x;
  Fp8TileTarget target;
  unsigned first_tile;  ///< its tiles are the blocks from here to the next entry's first
};

/// Passed by value as the kernel's parameter, so a list of tensors needs no device memory.
template <int kCapacity>
struct QuantizeTable {
  QuantizeEntry entry[kCapacity];
  int count;
};
constexpr int kManyCapacity = 32;
static_assert(sizeof(QuantizeTable<kManyCapacity>) <= 4096, "kernel parameters are limited to 4 KiB");

template <class T, DType kFormat, bool kAligned, int kCapacity>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T, kAligned>)
    quantize_kernel(const __grid_constant__ QuantizeTable<kCapacity> table) {
  __shared__ Fp8TileShared shared;
  int index = 0;
  while (index + 1 < table.count && blockIdx.x >= table.entry[index + 1].first_tile) ++index;
  const QuantizeEntry& entry = table.entry[kCapacity == 1 ? 0 : index];
  const Fp8TileTarget& target = entry.target;
  const unsigned tile = blockIdx.x - entry.first_tile;
  const unsigned tiles_across = static_cast<unsigned>((target.cols + kTileCols - 1) / kTileCols);
  const int64_t tile_row = int64_t{tile / tiles_across} * kTileRows;
  const int64_t tile_col = int64_t{tile % tiles_across} * kTileCols;

  Octet<T> values[kThreadRows];
  load_tile<kAligned>(static_cast<const T*>(entry.x), target.cols, target.rows, tile_row, tile_col,
                      target.cols, values);
  Fp8TileWriter<T, kFormat, kAligned> writer(target, shared);
  writer.write(values, tile_row, tile_col, target.cols);
  writer.finish(tile == 0);
}

/// 32 columns per block, 8 strands of rows each.
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

template <class T, DType kFormat>
__global__ void dequantize_kernel(const uint8_t* q, const float* scale_inv, T* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const __half_raw half = __nv_cvt_fp8_to_halfraw(q[i], kInterpretation<kFormat>);
  store_float(out + i, __half2float(__half(half)) * *scale_inv);
}

QuantizeEntry make_entry(const Quantize& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  return {args.x.data, tile_target(args.out, args.dbias ? args.scratch.as<float>() : nullptr, rows, cols), 0};
}
bool is_entry_aligned(const QuantizeEntry& entry) {
  return is_tile_aligned(entry.target) && is_aligned(entry.x, 16);
}
unsigned tiles_of(const Fp8TileTarget& target) {
  return ceil_div(target.rows, kTileRows) * ceil_div(target.cols, kTileCols);
}

template <int kCapacity>
void launch(const Context& context, DType type, DType format, bool aligned, QuantizeTable<kCapacity>& table) {
  unsigned tiles = 0;
  for (int i = 0; i < table.count; ++i) {
    table.entry[i].first_tile = tiles;
    tiles += tiles_of(table.entry[i].target);
  }
  dispatch_tile(type, format, aligned, [&]<class T, DType kFormat, bool kAligned>() {
    quantize_kernel<T, kFormat, kAligned, kCapacity><<<tiles, kTileThreads, 0, cuda_stream(context)>>>(table);
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void add_partial_sums(const Context& context, const float* partial, int64_t blocks, int64_t cols,
                      const Tensor& sums) {
  visit_hp(sums.dtype, [&](auto zero) {
    using T = typename DeviceType<decltype(zero)>::type;
    add_partial_sums_kernel<T><<<ceil_div(cols, kWarpSize), dim3(kWarpSize, 8), 0, cuda_stream(context)>>>(
        partial, blocks, cols, sums.as<T>());
  });
  TE_CUDA_CHECK_LAUNCH();
}

void quantize(const Context& context, const Quantize& args) {
  if (args.x.numel() == 0) return;
  QuantizeTable<1> table{{make_entry(args)}, 1};
  launch(context, args.x.dtype, tile_format(args.out), is_entry_aligned(table.entry[0]), table);
  if (args.dbias)
    add_partial_sums(context, args.scratch.as<float>(), ceil_div(args.x.rows(), kTileRows), args.x.cols(),
                     args.dbias);
}

void quantize_many(const Context& context, const Quantize* args, int count) {
  // A launch takes tensors of one kind: input type, format and alignment choose the kernel.
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const DType format : {DType::e4m3, DType::e5m2}) {
      for (const bool aligned : {true, false}) {
        QuantizeTable<kManyCapacity> table{};
        for (int i = 0; i < count; ++i) {
          if (args[i].x.numel() == 0 || args[i].x.dtype != type || tile_format(args[i].out) != format)
            continue;
          const QuantizeEntry entry = make_entry(args[i]);
          if (is_entry_aligned(entry) != aligned) continue;
          table.entry[table.count++] = entry;
          if (table.count < kManyCapacity) continue;
          launch(context, type, format, aligned, table);
          table.count = 0;
        }
        if (table.count > 0) launch(context, type, format, aligned, table);
      }
    }
  }
}

void transpose_fp8(const Context& context, const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  const int64_t rows = x.rows(), cols = x.cols();
  const bool aligned = rows % 16 == 0 && cols % 8 == 0 && is_aligned(x.data, 8) && is_aligned(out.data, 16);
  const auto kernel = aligned ? transpose_kernel<true> : transpose_kernel<false>;
  kernel<<<ceil_div(rows, kTileRows) * ceil_div(cols, kTileCols), kTileThreads, 0, cuda_stream(context)>>>(
      x.as<uint8_t>(), rows, cols, out.as<uint8_t>());
  TE_CUDA_CHECK_LAUNCH();
}

void dequantize(const Context& context, const Tensor& q, const float* scale_inv, const Tensor& out) {
  const int64_t count = q.numel();
  if (count == 0) return;
  const auto start = [&]<class T, DType kFormat>() {
    dequantize_kernel<T, kFormat><<<ceil_div(count, 256), 256, 0, cuda_stream(context)>>>(
        q.as<uint8_t>(), scale_inv, out.as<T>(), count);
  };
  const bool e4m3 = q.dtype == DType::e4m3;
  if (out.dtype == DType::f32) {
    e4m3 ? start.operator()<float, DType::e4m3>() : start.operator()<float, DType::e5m2>();
  } else {
    e4m3 ? start.operator()<__nv_bfloat16, DType::e4m3>() : start.operator()<__nv_bfloat16, DType::e5m2>();
  }
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
