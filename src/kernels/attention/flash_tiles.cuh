// What both passes of attention on Hopper share: the threads of a block, tensor maps.
#pragma once

#include <cudaTypedefs.h>

#include "core/tensor.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/hopper.cuh"

namespace te::kernels::flash {

using namespace hopper;

constexpr int kConsumers = 2;  ///< warpgroups that compute, 64 queries (forward) or keys (backward) each
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr float kInfinity = __builtin_huge_valf();

/// Of the driver, found through the runtime: te-train does not link to the driver's library.
inline PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const PFN_cuTensorMapEncodeTiled_v12000 function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    TE_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                   &result));
#else
    TE_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
#endif
    TE_CHECK(result == cudaDriverEntryPointSuccess, "attention: the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

/// Boxes of `rows` x 64 of a tensor [batch, seq, columns] of BF16.
inline CUtensorMap tiles_of(const Tensor& tensor, int64_t batch, int64_t seq, int rows) {
  CUtensorMap map;
  const auto columns = static_cast<cuuint64_t>(tensor.cols());
  const cuuint64_t dims[3] = {columns, static_cast<cuuint64_t>(seq), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[2] = {columns * 2, static_cast<cuuint64_t>(seq) * columns * 2};
  const cuuint32_t box[3] = {kTileColumns, static_cast<cuuint32_t>(rows), 1}, steps[3] = {1, 1, 1};
  const CUresult status =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, tensor.data, dims, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TE_CHECK(status == CUDA_SUCCESS, "attention: cuTensorMapEncodeTiled: error {}", static_cast<int>(status));
  return map;
}

}  // namespace te::kernels::flash
