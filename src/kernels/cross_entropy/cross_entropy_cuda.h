// CUDA side of the cross-entropy; the public functions have checked the arguments.
#pragma once

#include "kernels/cross_entropy/cross_entropy.h"

namespace te::kernels::cuda {
void cross_entropy(const Context& context, const CrossEntropy& args);
void cross_entropy_statistics(const Context& context, const CrossEntropyStatistics& args);
void cross_entropy_from_statistics(const Context& context, const CrossEntropyFromStatistics& args);
void accumulate_sum(const Context& context, const Tensor& values, const Tensor& sum);
}  // namespace te::kernels::cuda
