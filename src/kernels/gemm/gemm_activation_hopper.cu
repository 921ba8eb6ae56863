// GEMMs with an activation behind them on Hopper: which shapes, and how they are launched.
#include <limits>

#include "kernels/gemm/activation_epilogues.cuh"
#include "kernels/gemm/gemm_activation_cuda.h"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"
#include "kernels/quantize/quantize_cuda.h"

namespace te::kernels::cuda {
namespace {

using namespace fused;

constexpr int kClustersTogether = 8;

static_assert(kRows == kColumnSumRows, "quantize_scratch_elements counts one partial sum per tile row");

/// Bulk copies want 16 bytes: addresses, and the distance of rows. Coordinates are 32-bit.
bool suits_boxes(const Tensor& tensor) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return tensor.dtype == DType::bf16 && tensor.cols() % 8 == 0 && is_aligned(tensor.data, 16) &&
         tensor.rows() <= kMost && tensor.cols() <= kMost;
}

/// [rows, blocks * columns] as boxes of 64 x `width`.
CUtensorMap activation_boxes(const Tensor& tensor, int64_t blocks, int64_t width) {
  const int64_t columns = tensor.cols() / blocks;
  return tensor_map(tensor.data, {.dims = {columns, blocks, tensor.rows()},
                                  .strides = {1, columns, tensor.cols()},
                                  .box = {width, 1, 64}});
}
/// m x ffn is the shape of the activation's result, k what is summed over.
GemmParams params_of(int64_t m, int64_t ffn, int64_t k, int64_t columns_of_tile) {
  const int clusters = static_cast<int>(ceil_div(m, kRows * kCluster)),
            columns = static_cast<int>(ceil_div(ffn, columns_of_tile));
  return {.grid = {clusters, columns, kClustersTogether},
          .depth_stages = static_cast<int>(ceil_div(k, kDepth)),
          .rows = static_cast<int>(m),
          .columns = static_cast<int>(ffn),
          .bias = nullptr,
          .partial = nullptr};
}

template <class Epilogue, Major kB>
void launch(const Context& context, const GemmMaps& maps, const GemmParams& params) {
  launch_persistent<gemm_kernel<Epilogue, kB>, GemmShared, kCluster>(context, params.grid.count, maps,
                                                                     params);
}

/// Enough tiles for all multiprocessors; below, cuBLASLt cuts a GEMM in other ways. Tiles are dealt out beforehand,
/// so a last round that is mostly empty, or multiprocessors that another stream's kernels hold, cost up to a round.
bool is_large(const Context& context, int64_t m, int64_t ffn) {
  return int64_t{ceil_div(m, kRows)} * ceil_div(ffn, kColumns) >= multiprocessor_count(context);
}

bool has_epilogue(ActivationKind kind) {
  return kind == ActivationKind::swiglu || kind == ActivationKind::gelu;
}

}  // namespace

bool gemm_activation_forward(const Context& context, const GemmActivationForward& args) {
  const int64_t m = args.a.rows(), k = args.a.cols(), ffn = args.y.cols();
  if (!has_epilogue(args.kind)) return false;
  const bool gated = is_gated(args.kind);
  for (const Tensor& tensor : {args.a, args.b, args.out, args.y})
    if (!suits_boxes(tensor)) return false;
  if (args.bias && (gated || !is_aligned(args.bias.data, 4))) return false;
  if (ffn % 8 != 0 || !is_large(context, m, ffn)) return false;
  const auto run = [&]<class Epilogue>(Epilogue, int64_t width) {
    constexpr int kBlocks = Epilogue::kBlocks;
    GemmParams params = params_of(m, ffn, k, kColumns / kBlocks);
    params.bias = args.bias ? args.bias.as<__nv_bfloat16>() : nullptr;
    launch<Epilogue, Major::k>(context,
                               {.a = boxes_of(args.a, 1, kRows),
                                .b = boxes_of(args.b, kBlocks, kColumns / kCluster),
                                .x = activation_boxes(args.out, kBlocks, width),
                                .y = activation_boxes(args.y, 1, width),
                                .dx = {}},
                               params);
  };
  gated ? run(SwigluForward{}, 32) : run(GeluForward{}, 64);
  return true;
}

bool gemm_activation_backward(const Context& context, const GemmActivationBackward& args) {
  const int64_t m = args.a.rows(), k = args.a.cols(), ffn = args.b.cols();
  if (!has_epilogue(args.kind)) return false;
  const bool gated = is_gated(args.kind);
  for (const Tensor& tensor : {args.a, args.b, args.x, args.dx, args.y ? args.y : args.dx})
    if (!suits_boxes(tensor)) return false;
  // A bias in front of SwiGLU is rare: its sums are left to a pass of their own.
  if ((gated && args.dbias) || !is_large(context, m, ffn)) return false;
  GemmParams params = params_of(m, ffn, k, kColumns);
  params.partial = args.dbias ? args.scratch.as<float>() : nullptr;
  const GemmMaps maps{.a = boxes_of(args.a, 1, kRows),
                      .b = boxes_of(args.b, 1, kDepth / kCluster),
                      .x = activation_boxes(args.x, gated ? 2 : 1, 64),
                      .y = args.y ? activation_boxes(args.y, 1, 64) : CUtensorMap{},
                      .dx = activation_boxes(args.dx, gated ? 2 : 1, 64)};
  if (!gated) {
    launch<GeluBackward, Major::mn>(context, maps, params);
  } else if (args.y) {
    launch<SwigluBackward<true>, Major::mn>(context, maps, params);
  } else {
    launch<SwigluBackward<false>, Major::mn>(context, maps, params);
  }
  if (args.dbias) add_partial_sums(context, args.scratch.as<float>(), ceil_div(m, kRows), ffn, args.dbias);
  // GELU's result has no buffer in the same kernel.
  if (args.y && !gated) kernels::activation_forward(context, {.kind = args.kind, .x = args.x, .y = args.y});
  return true;
}

}  // namespace te::kernels::cuda
