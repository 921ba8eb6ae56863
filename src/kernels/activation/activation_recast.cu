// The second launch of the activations' casts (kernels/quantize/fp8_output.h, Fp8Recast).
#include "kernels/activation/activation_tiles.cuh"

namespace te::kernels::cuda {
namespace {

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kRecastBlocks)
    forward_again_kernel(const __grid_constant__ ForwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<true>(args.target, shared,
                  [&](unsigned tile) { forward_tile<kind, T, kFormat, kAligned, true>(args, tile, shared); });
}

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kRecastBlocks)
    backward_again_kernel(const __grid_constant__ BackwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<true>(args.target, shared, [&](unsigned tile) {
    backward_tile<kind, T, kFormat, kAligned, true>(args, tile, shared);
  });
}

/// Models on a GPU are BF16: of FP32 one kernel serves all alignments.
template <class Launch>
void dispatch(ActivationKind kind, DType type, DType format, bool aligned, Launch&& launch) {
  dispatch_tile(type, format, aligned && type == DType::bf16, [&]<class T, DType kFormat, bool kAligned>() {
    if constexpr (sizeof(T) == 2 || !kAligned)
      visit_activation(
          kind, [&]<ActivationKind kKind>() { launch.template operator()<kKind, T, kFormat, kAligned>(); });
  });
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace

void recast_activation(const Context& context, const ActivationForward& args, const Fp8TileTarget& target,
                       unsigned blocks) {
  dispatch(args.kind, args.x.dtype, tile_format(args.y_fp8), is_aligned_for(args, target),
           [&]<ActivationKind kind, class T, DType kFormat, bool kAligned>() {
             forward_again_kernel<kind, T, kFormat, kAligned>
                 <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(device_args<T>(args, target));
           });
}

void recast_activation(const Context& context, const ActivationBackward& args, const Fp8TileTarget& target,
                       unsigned blocks) {
  dispatch(args.kind, args.x.dtype, tile_format(args.dx_fp8), is_aligned_for(args, target),
           [&]<ActivationKind kind, class T, DType kFormat, bool kAligned>() {
             backward_again_kernel<kind, T, kFormat, kAligned>
                 <<<blocks, kTileThreads, 0, cuda_stream(context)>>>(device_args<T>(args, target));
           });
}

}  // namespace te::kernels::cuda
