// SwiGLU, GELU and their relatives on the GPU, in the tiles of fp8_tile.cuh, so that FP8 output costs no second pass.
#include "kernels/activation/activation.h"
#include "kernels/activation/activation_device.cuh"
#include "kernels/activation/activation_math.h"
#include "kernels/quantize/fp8_tile.cuh"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

template <class T>
struct ForwardArgs {
  const T* x;
  T* y;
  Fp8TileTarget target;  ///< [rows, ffn]
  float clamp;
};

template <class T>
struct BackwardArgs {
  const T* x;
  const T* dy;
  T* dx;
  Fp8TileTarget target;  ///< [rows, cols of x]; its tiles are those of [rows, ffn]
  int64_t ffn;
  float clamp;
};

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__device__ __forceinline__ void forward_tile(const ForwardArgs<T>& args, unsigned index,
                                             Fp8TileShared& shared) {
  constexpr bool gated = is_gated(kind);
  const int64_t rows = args.target.rows, ffn = args.target.cols, stride = gated ? 2 * ffn : ffn;
  const TilePlace tile = tile_place(index, ffn);
  Octet<T> x[kThreadRows], up[kThreadRows];
  load_tile<kAligned>(args.x, stride, rows, tile.row, tile.col, ffn, x);
  if constexpr (gated) load_tile<kAligned>(args.x + ffn, stride, rows, tile.row, tile.col, ffn, up);
  const auto value = [&](int i, int j) {
    const float in = gate_within<kind>(x[i].get(j), args.clamp);
    float factor = 0.0f;
    if constexpr (gated) factor = up_within<kind>(up[i].get(j), args.clamp);
    return activation_value<kind>(in, factor, activation_factor<kind, T>(in));
  };
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) x[i].set_pair(j, value(i, j), value(i, j + 1));
  }
  if (args.y != nullptr) store_tile<kAligned>(x, args.y, ffn, rows, tile.row, tile.col, ffn);
  Fp8TileWriter<T, kFormat, kAligned> writer(args.target, shared);
  writer.write(x, tile.row, tile.col, ffn);
  writer.finish(index == 0);
}

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T, kAligned>)
    forward_kernel(const __grid_constant__ ForwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles(args.target, shared,
            [&](unsigned tile) { forward_tile<kind, T, kFormat, kAligned>(args, tile, shared); });
}

/// x becomes dx (SwiGLU: x the gate's, up the up projection's); dx may share memory with x, as each thread
/// writes only what it alone has read.
template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__device__ __forceinline__ void backward_tile(const BackwardArgs<T>& args, unsigned index,
                                              Fp8TileShared& shared) {
  constexpr bool gated = is_gated(kind);
  const int64_t rows = args.target.rows, cols = args.target.cols, ffn = args.ffn;
  const TilePlace tile = tile_place(index, ffn);
  Octet<T> x[kThreadRows], up[kThreadRows], dy[kThreadRows];
  load_tile<kAligned>(args.x, cols, rows, tile.row, tile.col, ffn, x);
  if constexpr (gated) load_tile<kAligned>(args.x + ffn, cols, rows, tile.row, tile.col, ffn, up);
  load_tile<kAligned>(args.dy, ffn, rows, tile.row, tile.col, ffn, dy);
#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      float first[2], second[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float in = x[i].get(j + k), slope = dy[i].get(j + k);
        const float s = activation_factor<kind, T>(gate_within<kind>(in, args.clamp));
        if constexpr (gated) {
          const GatedGradient d = gated_gradient<kind>(in, up[i].get(j + k), s, slope, args.clamp);
          first[k] = d.gate;
          second[k] = d.up;
        } else {
          first[k] = plain_gradient<kind>(in, s, slope);
        }
      }
      x[i].set_pair(j, first[0], first[1]);
      if constexpr (gated) up[i].set_pair(j, second[0], second[1]);
    }
  }
  if (args.dx != nullptr) {
    store_tile<kAligned>(x, args.dx, cols, rows, tile.row, tile.col, ffn);
    if constexpr (gated) store_tile<kAligned>(up, args.dx + ffn, cols, rows, tile.row, tile.col, ffn);
  }
  Fp8TileWriter<T, kFormat, kAligned> writer(args.target, shared);
  writer.write(x, tile.row, tile.col, ffn);
  if constexpr (gated) writer.write(up, tile.row, ffn + tile.col, cols);
  writer.finish(index == 0);
}

/// SwiGLU's gradient holds three packed tensors, so it gets more registers.
template <ActivationKind kind, class T, bool kAligned>
constexpr int kBackwardBlocks = is_gated(kind) && kAligned && sizeof(T) == 2 ? 3 : kTileBlocks<T, kAligned>;

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kBackwardBlocks<kind, T, kAligned>)
    backward_kernel(const __grid_constant__ BackwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles(args.target, shared,
            [&](unsigned tile) { backward_tile<kind, T, kFormat, kAligned>(args, tile, shared); });
}

void launch_forward(const Context& context, const ActivationForward& args, const Fp8TileTarget& target,
                    unsigned blocks) {
  const bool aligned = is_tile_aligned(target) && is_aligned(args.x.data, 16) && is_aligned(args.y.data, 16);
  dispatch_tile(args.x.dtype, tile_format(args.y_fp8), aligned, [&]<class T, DType kFormat, bool kAligned>() {
    visit_activation(args.kind, [&]<ActivationKind kind>() {
      forward_kernel<kind, T, kFormat, kAligned><<<blocks, kTileThreads, 0, cuda_stream(context)>>>(
          ForwardArgs<T>{args.x.as<T>(), args.y.as<T>(), target, args.clamp});
    });
  });
  TE_CUDA_CHECK_LAUNCH();
}

void launch_backward(const Context& context, const ActivationBackward& args, const Fp8TileTarget& target,
                     int64_t ffn, unsigned blocks) {
  const bool aligned = is_tile_aligned(target) && ffn % 8 == 0 && is_aligned(args.x.data, 16) &&
                       is_aligned(args.dy.data, 16) && is_aligned(args.dx.data, 16);
  dispatch_tile(
      args.x.dtype, tile_format(args.dx_fp8), aligned, [&]<class T, DType kFormat, bool kAligned>() {
        visit_activation(args.kind, [&]<ActivationKind kind>() {
          backward_kernel<kind, T, kFormat, kAligned><<<blocks, kTileThreads, 0, cuda_stream(context)>>>(
              BackwardArgs<T>{args.x.as<T>(), args.dy.as<T>(), args.dx.as<T>(), target, ffn, args.clamp});
        });
      });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

// A cast that is made again reads the values where they are stored; where they are not, they are computed again, from x
// and dy, which are then still there.

void activation_forward(const Context& context, const ActivationForward& args) {
  const int64_t rows = args.x.rows();
  const int64_t ffn = is_gated(args.kind) ? args.x.cols() / 2 : args.x.cols();
  if (args.x.numel() == 0) return;
  const Fp8Output out = args.y ? first_cast(args.y_fp8) : args.y_fp8;
  cast_tiles(
      context, out, nullptr, rows, ffn, tile_count(rows, ffn),
      [&](const Fp8TileTarget& target, unsigned blocks) { launch_forward(context, args, target, blocks); });
  if (args.y) recast(context, args.y, args.y_fp8);
}

void activation_backward(const Context& context, const ActivationBackward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  const int64_t ffn = is_gated(args.kind) ? cols / 2 : cols;
  if (args.x.numel() == 0) return;
  float* const partial = args.dbias ? args.scratch.as<float>() : nullptr;
  const Fp8Output out = args.dx ? first_cast(args.dx_fp8) : args.dx_fp8;
  cast_tiles(context, out, partial, rows, cols, tile_count(rows, ffn),
             [&](const Fp8TileTarget& target, unsigned blocks) {
               launch_backward(context, args, target, ffn, blocks);
             });
  if (args.dx) recast(context, args.dx, args.dx_fp8);
  if (args.dbias) add_partial_sums(context, partial, ceil_div(rows, kTileRows), cols, args.dbias);
}

}  // namespace te::kernels::cuda
