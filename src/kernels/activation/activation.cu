// SwiGLU, GELU and related activations on the GPU. If stored values overflow the scale, they are requantized from
// memory; values that are not stored are recomputed by activation_requantize.cu.
#include "kernels/activation/activation_tiles.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks<T, kAligned>)
    forward_kernel(const __grid_constant__ ForwardArgs<T> args) {
  launch_dependent_grids();
  __shared__ Fp8TileShared shared;
  forward_tile<kind, T, kFormat, kAligned, false>(args, blockIdx.x, shared);
}

/// The gradient of a gated activation holds three packed tensors, so it gets more registers.
template <ActivationKind kind, class T, bool kAligned>
constexpr int kBackwardBlocks = is_gated(kind) && kAligned && sizeof(T) == 2 ? 3 : kTileBlocks<T, kAligned>;

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kBackwardBlocks<kind, T, kAligned>)
    backward_kernel(const __grid_constant__ BackwardArgs<T> args) {
  launch_dependent_grids();
  __shared__ Fp8TileShared shared;
  backward_tile<kind, T, kFormat, kAligned, false>(args, blockIdx.x, shared);
}

}  // namespace

void activation_forward(const Context& context, const ActivationForward& args) {
  const int64_t rows = args.x.rows();
  const int64_t ffn = is_gated(args.kind) ? args.x.cols() / 2 : args.x.cols();
  if (args.x.numel() == 0) return;
  const auto launch = [&](const Fp8TileTarget& target, unsigned blocks) {
    dispatch_tile(args.x.dtype, tile_format(args.y_fp8), is_aligned_for(args, target),
                  [&]<class T, DType kFormat, bool kAligned>() {
                    visit_activation(args.kind, [&]<ActivationKind kind>() {
                      forward_kernel<kind, T, kFormat, kAligned>
                          <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(device_args<T>(args, target));
                    });
                  });
    TE_CUDA_CHECK_LAUNCH();
  };
  const auto requantize_tiles = [&](const Fp8TileTarget& target) {
    requantize_activation(context, args, target);
  };
  const Fp8Output out = args.y ? first_quantization(args.y_fp8) : args.y_fp8;
  quantize_tiles(context, out, nullptr, rows, ffn, tile_count(rows, ffn), launch, requantize_tiles);
  if (args.y) requantize(context, args.y, args.y_fp8);
}

void activation_backward(const Context& context, const ActivationBackward& args) {
  const int64_t rows = args.x.rows(), cols = args.x.cols();
  if (args.x.numel() == 0) return;
  const auto launch = [&](const Fp8TileTarget& target, unsigned blocks) {
    dispatch_tile(args.x.dtype, tile_format(args.dx_fp8), is_aligned_for(args, target),
                  [&]<class T, DType kFormat, bool kAligned>() {
                    visit_activation(args.kind, [&]<ActivationKind kind>() {
                      backward_kernel<kind, T, kFormat, kAligned>
                          <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(device_args<T>(args, target));
                    });
                  });
    TE_CUDA_CHECK_LAUNCH();
  };
  const auto requantize_tiles = [&](const Fp8TileTarget& target) {
    requantize_activation(context, args, target);
  };
  float* const partial = args.dbias ? args.scratch.as<float>() : nullptr;
  const Fp8Output out = args.dx ? first_quantization(args.dx_fp8) : args.dx_fp8;
  quantize_tiles(context, out, partial, rows, cols, tile_count(rows, args.dy.cols()), launch,
                 requantize_tiles);
  if (args.dx) requantize(context, args.dx, args.dx_fp8);
  if (args.dbias) add_partial_sums(context, partial, ceil_div(rows, kTileRows), cols, args.dbias);
}

}  // namespace te::kernels::cuda
