// Launches of activation_mainloop.cuh's kernels: supported tensors, tensor maps, parameters.
#pragma once

#include <type_traits>

#include "kernels/gemm/activation_epilogues.cuh"
#include "kernels/gemm/gemm_activation.h"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels::fused {

constexpr int kClustersTogether = 8;

/// Boxes of `rows` x `width` of a [rows, blocks * columns] tensor.
inline CUtensorMap activation_boxes(const Tensor& tensor, int64_t blocks, int64_t width, int64_t rows = 64) {
  const int64_t columns = tensor.cols() / blocks;
  return tensor_map(tensor.data,
                    {.dims = {columns, blocks, tensor.rows()},
                     .strides = {1, columns, tensor.cols()},
                     .box = {width, 1, rows}},
                    tensor.dtype);
}
/// m x ffn is the shape of the activation's result; k is the summed dimension, in stages of `depth_of_stage` values.
inline GemmParams params_of(int64_t m, int64_t ffn, int64_t k, int64_t depth_of_stage,
                            int64_t columns_of_tile) {
  const int clusters = static_cast<int>(ceil_div(m, kRows * kCluster)),
            columns = static_cast<int>(ceil_div(ffn, columns_of_tile));
  return {.grid = {clusters, columns, kClustersTogether},
          .depth_stages = static_cast<int>(ceil_div(k, depth_of_stage)),
          .rows = static_cast<int>(m),
          .columns = static_cast<int>(ffn)};
}

template <class Epilogue, class Operands>
void launch(const Context& context, const GemmMaps& maps, const GemmParams& params) {
  launch_persistent<gemm_kernel<Epilogue, Operands>, GemmShared, kCluster>(context, params.grid.count, maps,
                                                                           params);
}

/// Whether there are enough tiles for all SMs; for smaller problems, cuBLASLt has other tile shapes. Tiles are assigned
/// statically, so a mostly empty last wave, or SMs occupied by kernels on another CUDA stream, cost up to one wave.
inline bool is_large(const Context& context, int64_t m, int64_t ffn) {
  return int64_t{ceil_div(m, kRows)} * ceil_div(ffn, kColumns) >= sm_count(context);
}

inline bool has_epilogue(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::gelu;
}

/// Whether the forward kernels support operands of this dtype, `out` and the bias, and there are enough tiles.
inline bool supports_forward(const Context& context, const GemmActivationForward& args, DType dtype) {
  if (!has_epilogue(args.kind)) return false;
  const bool gated = is_gated(args.kind);
  const int64_t ffn = args.b.rows() / (gated ? 2 : 1);
  if (!fits_tma(args.a.values, dtype) || !fits_tma(args.b.values, dtype) || !fits_tma(args.out, DType::bf16))
    return false;
  // No model has a bias before SwiGLU.
  if (args.bias && (gated || !is_aligned(args.bias.data, 4))) return false;
  return ffn % 8 == 0 && is_large(context, args.a.rows(), ffn);
}

/// y, and its transposed copy in FP8; then either may be empty.
struct ResultTensors {
  Tensor y, y_columns;
  QuantizeParams quantize{};
};

template <class Operands, class Result>
void launch_forward(const Context& context, const GemmActivationForward& args, const ResultTensors& result) {
  const auto run = [&]<class Epilogue>(std::type_identity<Epilogue>, int64_t width) {
    constexpr int kBlocks = Epilogue::kBlocks;
    GemmParams params = params_of(args.a.rows(), args.b.rows() / kBlocks, args.a.cols(), Operands::kDepth,
                                  kColumns / kBlocks);
    params.bias = args.bias ? args.bias.as<__nv_bfloat16>() : nullptr;
    params.y = result.quantize;
    if constexpr (Operands::kScaled)
      params.a_scale = args.a.scales.as<float>(), params.b_scale = args.b.scales.as<float>();
    launch<Epilogue, Operands>(
        context,
        {.a = boxes_of(args.a.values, 1, kRows),
         .b = boxes_of(args.b.values, kBlocks, kColumns / kCluster),
         .x = activation_boxes(args.out, kBlocks, width),
         .y = result.y ? activation_boxes(result.y, 1, width) : CUtensorMap{},
         .y_columns = result.y_columns ? activation_boxes(result.y_columns, 1, 64, width) : CUtensorMap{}},
        params);
  };
  is_gated(args.kind) ? run(std::type_identity<SwigluForward<Result>>{}, 32)
                      : run(std::type_identity<GeluForward<Result>>{}, 64);
}

}  // namespace te::kernels::fused
