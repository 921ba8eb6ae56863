// Launches of block_scaled_epilogue.cuh's kernel: tile configurations, tensor maps, parameters.
#pragma once

#include <type_traits>

#include "kernels/gemm/block_scaled_cuda.h"
#include "kernels/gemm/block_scaled_epilogue.cuh"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels::block_scaled {

constexpr int kClustersTogether = 8;
constexpr size_t kSharedMemory = 227 * 1024;  ///< per block

template <class C, class K>
void launch(const Context& context, const Gemm& args) {
  static_assert(sizeof(Shared<C, K>) <= kSharedMemory);
  const auto [m, n, k] = gemm_size(args);
  const auto count = [](int64_t size, int64_t of_tile) { return static_cast<int>(ceil_div(size, of_tile)); };
  const auto stride = [](const Matrix& matrix) {
    if (matrix.layout == ScaleLayout::blocks) return matrix.scales.cols();
    return matrix.scale_stride > 0 ? matrix.scale_stride : matrix.rows();
  };
  const Params params{.grid = {count(m, C::kRows * (C::kSharesA ? 1 : kCluster)),
                               count(n, C::kColumns * (C::kSharesA ? kCluster : 1)), kClustersTogether},
                      .depth_blocks = count(k, kDepth),
                      .rows = static_cast<int>(m),
                      .columns = static_cast<int>(n),
                      .a_scales = args.a.scales.as<float>(),
                      .b_scales = args.b.scales.as<float>(),
                      .a_stride = stride(args.a),
                      .b_stride = stride(args.b),
                      .bias = args.bias ? args.bias.as<__nv_bfloat16>() : nullptr,
                      .accumulate = args.accumulate};
  const Maps maps{.a = boxes_of(args.a.values, 1, C::kSharesA ? C::kRows / kCluster : C::kRows),
                  .b = boxes_of(args.b.values, 1, C::kSharesA ? C::kColumns : C::kColumns / kCluster),
                  .out = boxes_of(args.out, 1, kBoxRows)};
  launch_persistent<block_scaled_kernel<C, K>, Shared<C, K>, kCluster>(context, params.grid.count, maps,
                                                                       params);
}

/// Launches the kernel with this number for E4M3 or E5M2 values in a. kLarge, kWide and kSmall are the numbers of
/// stages for tiles of 256 x 128, 128 x 192 and 128 x 128.
template <ScaleLayout kScales, DType kOut, int kLarge, int kWide, int kSmall>
void launch_kernel(const Context& context, const Gemm& args, int kernel) {
  const auto with = [&]<class C>(std::type_identity<C>) {
    args.a.dtype() == DType::e4m3 ? launch<C, Kind<DType::e4m3, DType::e4m3, kScales, kOut>>(context, args)
                                  : launch<C, Kind<DType::e5m2, DType::e4m3, kScales, kOut>>(context, args);
  };
  switch (kernel) {
    case 1:
      return with(std::type_identity<Cut<2, 128, kLarge, 1, false>>{});
    case 2:
      return with(std::type_identity<Cut<2, 128, kLarge, 1, true>>{});
    case 3:
      return with(std::type_identity<Cut<1, 192, kWide, 1, false>>{});
    case 4:
      return with(std::type_identity<Cut<1, 192, kWide, 1, true>>{});
    case 5:
      return with(std::type_identity<Cut<1, 128, kSmall, 1, false>>{});
    default:
      return with(std::type_identity<Cut<1, 128, kSmall, 1, true>>{});
  }
}

}  // namespace te::kernels::block_scaled
