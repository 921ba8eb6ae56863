// CUDA launchers of tensor_stats.
#pragma once

#include "kernels/tensor_stats/tensor_stats.h"

namespace te::kernels::cuda {

void tensor_stats(const Context& context, const TensorStats& args);
void row_alignment(const Context& context, const RowAlignment& args);

}  // namespace te::kernels::cuda
