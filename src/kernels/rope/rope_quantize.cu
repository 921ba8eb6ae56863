// Rotary embedding fused with quantization of its result to FP8, on the tiles of fp8_tile.cuh: a head of 128 channels
// is two tiles, one per half, which a block rotates in registers. Multiplications and roundings are those of rope.cu,
// so the result equals that of separate rotation and quantization.
#include "kernels/quantize/fp8_tile.cuh"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/rope/rope_cuda.h"

namespace te::kernels::cuda {
namespace {

constexpr int kHeadDim = 2 * kTileCols;

template <class T>
struct RopeQuantizeArgs {
  const T* qkv;
  const float* cos;
  const float* sin;
  const int32_t* positions;  ///< null: row % seq
  Fp8TileTarget target;      ///< [rows, columns of qkv]
  unsigned seq;
  unsigned rotated;  ///< heads to rotate: q and k
  float sign;
};

template <class T, DType kFormat, bool kRequantize>
__device__ __forceinline__ void quantize_head(const RopeQuantizeArgs<T>& args, unsigned index,
                                              Fp8TileShared& shared) {
  const int64_t rows = args.target.rows, columns = args.target.cols;
  const unsigned heads = static_cast<unsigned>(columns / kHeadDim), head = index % heads;
  const int64_t tile_row = int64_t{index / heads} * kTileRows, col = int64_t{head} * kHeadDim;
  Vec8<T> a[kThreadRows], b[kThreadRows];
  load_tile<true>(args.qkv, columns, rows, tile_row, col, columns, a);
  load_tile<true>(args.qkv, columns, rows, tile_row, col + kTileCols, columns, b);
  if (head < args.rotated) {
    const int64_t row = tile_row + threadIdx.x / 8 * kThreadRows;
    const unsigned offset = threadIdx.x % 8 * 8;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      if (row + i >= rows) continue;
      const int64_t position =
          args.positions != nullptr ? args.positions[row + i] : static_cast<int64_t>((row + i) % args.seq);
      const float* const cos = args.cos + position * kTileCols + offset;
      const float* const sin = args.sin + position * kTileCols + offset;
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float4 c = *reinterpret_cast<const float4*>(cos + j);
        const float4 s = *reinterpret_cast<const float4*>(sin + j);
        const float cs[4] = {c.x, c.y, c.z, c.w}, sn[4] = {s.x, s.y, s.z, s.w};
        float first[4], second[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float x = a[i].get(j + k), y = b[i].get(j + k), sine = args.sign * sn[k];
          first[k] = __fsub_rn(__fmul_rn(x, cs[k]), __fmul_rn(y, sine));
          second[k] = __fadd_rn(__fmul_rn(y, cs[k]), __fmul_rn(x, sine));
        }
        a[i].set_pair(j, first[0], first[1]), a[i].set_pair(j + 2, first[2], first[3]);
        b[i].set_pair(j, second[0], second[1]), b[i].set_pair(j + 2, second[2], second[3]);
      }
    }
  }
  Fp8TileWriter<T, kFormat, true, kRequantize> writer(args.target, shared);
  writer.write(a, tile_row, col, columns);
  writer.write(b, tile_row, col + kTileCols, columns);
  writer.finish(index == 0);
}

/// Iterates over heads of kTileRows rows instead of tiles.
template <class T, DType kFormat, bool kRequantize>
__global__ void __launch_bounds__(kTileThreads, kRequantize      ? kRequantizeBlocks<T, true>
                                                : sizeof(T) == 2 ? 3
                                                                 : 1)
    rope_quantize_kernel(const __grid_constant__ RopeQuantizeArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<kRequantize>(args.target, shared,
                         [&](unsigned tile) { quantize_head<T, kFormat, kRequantize>(args, tile, shared); });
}

template <class T>
RopeQuantizeArgs<T> device_args(const Rope& args, const Fp8TileTarget& target) {
  return {args.qkv.as<T>(),
          args.cos.as<float>(),
          args.sin.as<float>(),
          args.positions.as<int32_t>(),
          target,
          static_cast<unsigned>(args.seq),
          static_cast<unsigned>(args.num_heads + args.num_query_groups),
          args.backward ? -1.0f : 1.0f};
}

/// Calls launch.template operator()<T, kFormat>() for run-time values.
template <class Launch>
void dispatch(const Rope& args, Launch&& launch) {
  dispatch_tile(args.qkv.dtype, tile_format(args.out), true, [&]<class T, DType kFormat, bool kAligned>() {
    if constexpr (kAligned) launch.template operator()<T, kFormat>();
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

bool rope_quantize(const Context& context, const Rope& args) {
  const int64_t rows = args.qkv.rows(), columns = args.qkv.cols();
  if (args.head_dim != kHeadDim || rows == 0) return false;
  float* const partial = args.dbias ? args.scratch.as<float>() : nullptr;
  const unsigned heads = ceil_div(rows, kTileRows) * static_cast<unsigned>(columns / kHeadDim);
  if (!is_tile_aligned(tile_target(args.out, partial, rows, columns, heads)) ||
      !is_aligned(args.qkv.data, 16) || !is_aligned(args.cos.data, 16) || !is_aligned(args.sin.data, 16))
    return false;
  quantize_tiles(
      context, args.out, partial, rows, columns, heads,
      [&](const Fp8TileTarget& target, unsigned blocks) {
        dispatch(args, [&]<class T, DType kFormat>() {
          rope_quantize_kernel<T, kFormat, false>
              <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(device_args<T>(args, target));
        });
      },
      [&](const Fp8TileTarget& target) {
        dispatch(args, [&]<class T, DType kFormat>() {
          launch_requantize<kRequantizeBlocks<T, true>>(context, args.out, target.tiles,
                                                        rope_quantize_kernel<T, kFormat, true>,
                                                        device_args<T>(args, target));
        });
      });
  if (args.dbias) add_partial_sums(context, partial, ceil_div(rows, kTileRows), columns, args.dbias);
  return true;
}

}  // namespace te::kernels::cuda
