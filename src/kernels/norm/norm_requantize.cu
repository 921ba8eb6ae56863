// Second quantization launch of the norms (kernels/quantize/fp8_output.h, Fp8Requantize), on the tiles of fp8_tile.cuh.
// It reads y if y is stored; otherwise it recomputes y from the norm's input and statistics with the same formula, so
// bitwise equal.
#include "kernels/norm/norm_cuda.h"
#include "kernels/norm/norm_device.cuh"
#include "kernels/quantize/fp8_tile.cuh"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

template <class T>
struct RequantizeArgs {
  const T* x;
  const T* gamma;
  const T* beta;
  const float* mean;
  const float* rstd;
  Fp8TileTarget target;
  bool layer, zero_centered;
};

template <class T, DType kFormat, bool kAligned>
__device__ __forceinline__ void quantize_tile(const RequantizeArgs<T>& args, unsigned index,
                                              Fp8TileShared& shared) {
  const int64_t rows = args.target.rows, cols = args.target.cols;
  const TileCoords tile = tile_coords(index, cols);
  const int64_t row = tile.row + threadIdx.x / 8 * kThreadRows, col = tile.col + threadIdx.x % 8 * 8;
  Vec8<T> values[kThreadRows];
  load_tile<kAligned>(args.x, cols, rows, tile.row, tile.col, cols, values);
  const Vec8<T> gamma = load_vec8<kAligned>(args.gamma + col, cols - col);
  const Vec8<T> beta = load_vec8<kAligned>(args.beta + col, args.layer ? cols - col : 0);
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    if (row + i >= rows || col >= cols) continue;  // zeros do not affect the counters
    const float rstd = args.rstd[row + i], mean = args.layer ? args.mean[row + i] : 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      float y[2];
#pragma unroll
      for (int k = 0; k < 2; ++k)
        y[k] = col + j + k < cols
                   ? norm_element(args.layer, values[i].get(j + k), mean, rstd,
                                  norm_gain(args.zero_centered, gamma.get(j + k)), beta.get(j + k))
                   : 0.0f;
      values[i].set_pair(j, y[0], y[1]);
    }
  }
  Fp8TileWriter<T, kFormat, kAligned, true> writer(args.target, shared);
  writer.write(values, tile.row, tile.col, cols);
  writer.finish(index == 0);
}

template <class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kRequantizeBlocks<T, kAligned>)
    requantize_kernel(const __grid_constant__ RequantizeArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<true>(args.target, shared,
                  [&](unsigned tile) { quantize_tile<T, kFormat, kAligned>(args, tile, shared); });
}

}  // namespace

void norm_requantize(const Context& context, const NormForward& a) {
  if (a.y) return requantize(context, a.y, a.y_fp8);
  if (a.x.numel() == 0) return;
  if (a.y_fp8.requantize.all_reduce_amax) a.y_fp8.requantize.all_reduce_amax(context);
  const int64_t rows = a.x.rows(), cols = a.x.cols();
  const Tensor& input = a.delta ? a.sum : a.x;
  const unsigned tiles = tile_count(rows, cols);
  const Fp8TileTarget target = requantize_target(a.y_fp8, rows, cols, tiles);
  const bool aligned = is_tile_aligned(target) && all_aligned(16, {input.data, a.gamma.data, a.beta.data});
  dispatch_tile(a.x.dtype, tile_format(a.y_fp8), aligned, [&]<class T, DType kFormat, bool kAligned>() {
    launch_requantize<kRequantizeBlocks<T, kAligned>>(
        context, a.y_fp8, tiles, requantize_kernel<T, kFormat, kAligned>,
        RequantizeArgs<T>{input.as<T>(), a.gamma.as<T>(), a.beta.as<T>(), a.mean.as<float>(),
                          a.rstd.as<float>(), target, a.kind == NormKind::layer,
                          a.kind == NormKind::rms_zero_centered});
  });
}

}  // namespace te::kernels::cuda
