// What both passes of attention on Hopper share: the threads of a block, tensor maps.
#pragma once

#include "core/tensor.h"
#include "kernels/common/cuda_common.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/tensor_map.h"

namespace te::kernels::flash {

using namespace hopper;

constexpr int kConsumers = 2;  ///< warpgroups that compute, 64 queries (forward) or keys (backward) each
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumerThreads / kWarpSize;
constexpr int kThreads = kConsumerThreads + kWarpgroup;
constexpr float kInfinity = __builtin_huge_valf();

/// Boxes of `rows` x 64 of a tensor [batch, seq, columns] of BF16.
inline CUtensorMap tiles_of(const Tensor& tensor, int64_t batch, int64_t seq, int rows) {
  const int64_t columns = tensor.cols();
  return tensor_map(tensor.data, {.dims = {columns, seq, batch},
                                  .strides = {1, columns, seq * columns},
                                  .box = {kTileColumns, rows, 1}});
}

}  // namespace te::kernels::flash
