// FP8 GEMMs with an activation after them on Hopper, fused with the quantization of the result. Both operands are E4M3
// with one inverse scale each. y is stored, or quantized to E4M3 by the first quantization launch (fp8_output.h). The
// second launch is that of activation_forward, which recomputes y from `out`.
#include "kernels/activation/activation_tiles.cuh"
#include "kernels/gemm/activation_launch.cuh"
#include "kernels/gemm/activation_quantize.cuh"
#include "kernels/gemm/gemm_activation_cuda.h"

namespace te::kernels::cuda {
namespace {

using namespace fused;

bool has_one_scale(const Matrix& matrix) {
  return matrix.layout == ScaleLayout::tensor && matrix.dtype() == DType::e4m3;
}
bool suits_quantization(const Fp8Output& out) {
  for (const Tensor& layout : {out.rowwise, out.columnwise})
    if (layout && !fits_tma(layout, DType::e4m3)) return false;
  return true;
}

void launch_quantized(const Context& context, const GemmActivationForward& args,
                      const Fp8TileTarget& target) {
  const Fp8Output& out = args.y_fp8;
  const bool rowwise = target.rowwise != nullptr, columnwise = target.columnwise != nullptr;
  const ResultTensors result{.y = rowwise ? out.rowwise : Tensor{},
                             .y_columns = columnwise ? out.columnwise : Tensor{},
                             .quantize = {.scale = target.scale,
                                          .scale_inv = target.scale_inv,
                                          .amax = target.amax,
                                          .counters = target.counters,
                                          .rowwise = rowwise,
                                          .columnwise = columnwise}};
  const auto run = [&]<bool kTransposes, bool kCounts>() {
    launch_forward<E4m3Operands, QuantizedResult<kTransposes, kCounts>>(context, args, result);
  };
  const bool counts = target.counters != nullptr;
  if (columnwise)
    counts ? run.operator()<true, true>() : run.operator()<true, false>();
  else
    counts ? run.operator()<false, true>() : run.operator()<false, false>();
}

}  // namespace

bool is_fused_fp8(const Context& context, const GemmActivationForward& args) {
  // gemm rejects other sizes with an error; a warp's 16 rows exist completely or not at all.
  if (args.a.rows() % 16 != 0 || args.b.rows() % 16 != 0) return false;
  if (!has_one_scale(args.a) || !has_one_scale(args.b) || !args.fast_accumulation ||
      !supports_forward(context, args, DType::e4m3))
    return false;
  return args.y ? !args.y_fp8 && fits_tma(args.y, DType::bf16) : suits_quantization(args.y_fp8);
}

bool gemm_activation_fp8(const Context& context, const GemmActivationForward& args) {
  if (!is_fused_fp8(context, args)) return false;
  if (args.y) {
    launch_forward<E4m3Operands, StoredResult>(context, args, {.y = args.y});
    return true;
  }
  const int64_t rows = args.a.rows(), ffn = args.b.rows() / (is_gated(args.kind) ? 2 : 1);
  const auto first = [&](const Fp8TileTarget& target, unsigned) { launch_quantized(context, args, target); };
  const auto requantize_tiles = [&](const Fp8TileTarget& target) {
    requantize_activation(
        context, {.kind = args.kind, .x = args.out, .y_fp8 = args.y_fp8, .clamp = args.clamp}, target);
  };
  quantize_tiles(context, args.y_fp8, nullptr, rows, ffn, tile_count(rows, ffn), first, requantize_tiles);
  return true;
}

}  // namespace te::kernels::cuda
