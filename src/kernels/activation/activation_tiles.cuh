// SwiGLU, GELU and related activations on the tiles of fp8_tile.cuh, so that FP8 output needs no second pass over
// memory. Shared by the kernels of both quantization launches.
#pragma once

#include "kernels/activation/activation.h"
#include "kernels/activation/activation_device.cuh"
#include "kernels/activation/activation_math.h"
#include "kernels/quantize/fp8_tile.cuh"

namespace te::kernels::cuda {

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

template <ActivationKind kind, class T, DType kFormat, bool kAligned, bool kRequantize>
__device__ __forceinline__ void forward_tile(const ForwardArgs<T>& args, unsigned index,
                                             Fp8TileShared& shared) {
  constexpr bool gated = is_gated(kind);
  const int64_t rows = args.target.rows, ffn = args.target.cols, stride = gated ? 2 * ffn : ffn;
  const TileCoords tile = tile_coords(index, ffn);
  Vec8<T> x[kThreadRows], up[kThreadRows];
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
  Fp8TileWriter<T, kFormat, kAligned, kRequantize> writer(args.target, shared);
  writer.write(x, tile.row, tile.col, ffn);
  writer.finish(index == 0);
}

/// Computes dx from x (of gated activations: from the gate's x and up). dx may share memory with x, because each thread
/// writes only elements that no other thread reads.
template <ActivationKind kind, class T, DType kFormat, bool kAligned, bool kRequantize>
__device__ __forceinline__ void backward_tile(const BackwardArgs<T>& args, unsigned index,
                                              Fp8TileShared& shared) {
  constexpr bool gated = is_gated(kind);
  const int64_t rows = args.target.rows, cols = args.target.cols, ffn = args.ffn;
  const TileCoords tile = tile_coords(index, ffn);
  Vec8<T> x[kThreadRows], up[kThreadRows], dy[kThreadRows];
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
  Fp8TileWriter<T, kFormat, kAligned, kRequantize> writer(args.target, shared);
  writer.write(x, tile.row, tile.col, ffn);
  if constexpr (gated) writer.write(up, tile.row, ffn + tile.col, cols);
  writer.finish(index == 0);
}

/// Arguments in the form that the kernels use.
template <class T>
ForwardArgs<T> device_args(const ActivationForward& args, const Fp8TileTarget& target) {
  return {args.x.as<T>(), args.y.as<T>(), target, args.clamp};
}
template <class T>
BackwardArgs<T> device_args(const ActivationBackward& args, const Fp8TileTarget& target) {
  return {args.x.as<T>(), args.dy.as<T>(), args.dx.as<T>(), target, args.dy.cols(), args.clamp};
}

inline bool is_aligned_for(const ActivationForward& args, const Fp8TileTarget& target) {
  return is_tile_aligned(target) && is_aligned(args.x.data, 16) && is_aligned(args.y.data, 16);
}
inline bool is_aligned_for(const ActivationBackward& args, const Fp8TileTarget& target) {
  return is_tile_aligned(target) && args.dy.cols() % 8 == 0 && is_aligned(args.x.data, 16) &&
         is_aligned(args.dy.data, 16) && is_aligned(args.dx.data, 16);
}

/// Second quantization launch for values that are not stored: recomputes them from x and dy.
void requantize_activation(const Context& context, const ActivationForward& args,
                           const Fp8TileTarget& target);
void requantize_activation(const Context& context, const ActivationBackward& args,
                           const Fp8TileTarget& target);

}  // namespace te::kernels::cuda
