// Second quantization launch of the activations (kernels/quantize/fp8_output.h, Fp8Requantize).
#include "kernels/activation/activation_tiles.cuh"

namespace te::kernels::cuda {
namespace {

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kRequantizeBlocks<T, kAligned>)
    forward_requantize_kernel(const __grid_constant__ ForwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<true>(args.target, shared,
                  [&](unsigned tile) { forward_tile<kind, T, kFormat, kAligned, true>(args, tile, shared); });
}

/// Three packed tensors give enough loads in flight with fewer blocks, which then keep their registers.
template <ActivationKind kind, class T, bool kAligned>
constexpr int kBackwardBlocks = is_gated(kind) ? 2 : kRequantizeBlocks<T, kAligned>;

template <ActivationKind kind, class T, DType kFormat, bool kAligned>
__global__ void __launch_bounds__(kTileThreads, kBackwardBlocks<kind, T, kAligned>)
    backward_requantize_kernel(const __grid_constant__ BackwardArgs<T> args) {
  __shared__ Fp8TileShared shared;
  for_tiles<true>(args.target, shared, [&](unsigned tile) {
    backward_tile<kind, T, kFormat, kAligned, true>(args, tile, shared);
  });
}

/// FP8 models use BF16, so FP32 needs only one kernel for all alignments.
template <class Launch>
void dispatch(ActivationKind kind, DType type, DType format, bool aligned, Launch&& launch) {
  TE_CHECK(type != DType::f16, "activation: FP16 values cannot be quantized to FP8");
  dispatch_tile(type, format, aligned && type == DType::bf16, [&]<class T, DType kFormat, bool kAligned>() {
    if constexpr (std::is_same_v<T, __nv_bfloat16> || (std::is_same_v<T, float> && !kAligned))
      visit_activation(
          kind, [&]<ActivationKind kKind>() { launch.template operator()<kKind, T, kFormat, kAligned>(); });
  });
}

}  // namespace

void requantize_activation(const Context& context, const ActivationForward& args,
                           const Fp8TileTarget& target) {
  dispatch(args.kind, args.x.dtype, tile_format(args.y_fp8), is_aligned_for(args, target),
           [&]<ActivationKind kind, class T, DType kFormat, bool kAligned>() {
             launch_requantize<kRequantizeBlocks<T, kAligned>>(
                 context, args.y_fp8, target.tiles, forward_requantize_kernel<kind, T, kFormat, kAligned>,
                 device_args<T>(args, target));
           });
}

void requantize_activation(const Context& context, const ActivationBackward& args,
                           const Fp8TileTarget& target) {
  dispatch(args.kind, args.x.dtype, tile_format(args.dx_fp8), is_aligned_for(args, target),
           [&]<ActivationKind kind, class T, DType kFormat, bool kAligned>() {
             launch_requantize<kBackwardBlocks<kind, T, kAligned>>(
                 context, args.dx_fp8, target.tiles, backward_requantize_kernel<kind, T, kFormat, kAligned>,
                 device_args<T>(args, target));
           });
}

}  // namespace te::kernels::cuda
