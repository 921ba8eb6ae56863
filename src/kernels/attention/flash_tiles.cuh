// What both passes of attention on Hopper share.
#pragma once

#include "core/tensor.h"
#include "kernels/hopper/hopper.cuh"
#include "kernels/hopper/launch.h"
#include "kernels/hopper/tensor_map.h"

namespace te::kernels::flash {

using namespace hopper;

constexpr float kInfinity = __builtin_huge_valf();

/// Boxes of `rows` x 64 of a tensor [batch, seq, columns] of BF16.
inline CUtensorMap boxes_of(const Tensor& tensor, int64_t batch, int64_t seq, int rows) {
  const int64_t columns = tensor.cols();
  return tensor_map(tensor.data, {.dims = {columns, seq, batch},
                                  .strides = {1, columns, seq * columns},
                                  .box = {kTileColumns, rows, 1}});
}

}  // namespace te::kernels::flash
