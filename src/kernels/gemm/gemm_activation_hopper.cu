// BF16 GEMMs with an activation after them on Hopper: supported shapes, and launches.
#include "kernels/gemm/activation_launch.cuh"
#include "kernels/gemm/gemm_activation_cuda.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {

using namespace fused;

static_assert(kRows == kColumnSumRows, "quantize_scratch_elements counts one partial sum per tile row");

bool is_fused(const Context& context, const GemmActivationForward& args) {
  if (args.a.layout != ScaleLayout::none) return is_fused_fp8(context, args);
  return !args.y_fp8 && fits_tma(args.y, DType::bf16) && supports_forward(context, args, DType::bf16);
}

bool gemm_activation_forward(const Context& context, const GemmActivationForward& args) {
  if (args.a.layout != ScaleLayout::none) return gemm_activation_fp8(context, args);
  if (!is_fused(context, args)) return false;
  launch_forward<Bf16Operands<Major::k>, StoredResult>(context, args, {.y = args.y});
  return true;
}

bool is_fused(const Context& context, const GemmActivationBackward& args) {
  if (!has_epilogue(args.kind)) return false;
  for (const Tensor& tensor : {args.a, args.b, args.x, args.dx, args.y ? args.y : args.dx})
    if (!fits_tma(tensor, DType::bf16)) return false;
  // A bias before SwiGLU is rare, so its gradient is summed in a separate pass.
  return !(is_gated(args.kind) && args.dbias) && is_large(context, args.a.rows(), args.b.cols());
}

bool gemm_activation_backward(const Context& context, const GemmActivationBackward& args) {
  if (!is_fused(context, args)) return false;
  const int64_t m = args.a.rows(), k = args.a.cols(), ffn = args.b.cols();
  const bool gated = is_gated(args.kind);
  using Operands = Bf16Operands<Major::mn>;
  GemmParams params = params_of(m, ffn, k, Operands::kDepth, kColumns);
  params.partial = args.dbias ? args.scratch.as<float>() : nullptr;
  const GemmMaps maps{.a = boxes_of(args.a, 1, kRows),
                      .b = boxes_of(args.b, 1, Operands::kDepth / kCluster),
                      .x = activation_boxes(args.x, gated ? 2 : 1, 64),
                      .y = args.y ? activation_boxes(args.y, 1, 64) : CUtensorMap{},
                      .dx = activation_boxes(args.dx, gated ? 2 : 1, 64)};
  if (!gated) {
    launch<GeluBackward, Operands>(context, maps, params);
  } else if (args.y) {
    launch<SwigluBackward<true>, Operands>(context, maps, params);
  } else {
    launch<SwigluBackward<false>, Operands>(context, maps, params);
  }
  if (args.dbias) add_partial_sums(context, args.scratch.as<float>(), ceil_div(m, kRows), ffn, args.dbias);
  // The kernel has no buffer for GELU's result.
  if (args.y && !gated) kernels::activation_forward(context, {.kind = args.kind, .x = args.x, .y = args.y});
  return true;
}

}  // namespace te::kernels::cuda
