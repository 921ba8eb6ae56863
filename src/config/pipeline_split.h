// parallel.pipeline_split: how many layers each piece of the pipeline has.
//   even       as equal as they can be (parallel/schedule/split_layers.h)
//   balanced   as equal in time as they can be: the last piece also has the output layer and the loss, and fewer layers
//   9,8,8,7    so many, piece by piece in the order of the model: as many numbers as stages * virtual_stages
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::config {

/// The numbers of a split that has them; empty for even and balanced. UserError where the text is none of the three.
std::vector<int> numbers_of_split(const std::string& split);

/// UserError, with the arithmetic, where the numbers do not fit the layers or the pieces.
void check_pipeline_split(const Config& config);

/// The time of the output layer and the loss, in layers: by FLOPs. Beside those of GEMMs in BF16 those in FP8 take 0.53
/// of the time, and those of attention, whose backward pass makes the scores anew, twice the time; norms, activations
/// and casts take 8 % of a layer (a 7B layer on an H200, docs/log/kernels.md).
double head_in_layers(const Config& config);

}  // namespace te::config
