// parallel.pipeline_split: the number of layers of each model chunk of the pipeline.
//   even       equal numbers of layers, as far as possible (parallel/schedule/split_layers.h)
//   balanced   equal times, as far as possible: the last chunk has fewer layers, plus the output layer and the loss
//   9,8,8,7    the given numbers, one per chunk in the order of the model: stages * virtual_stages numbers
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::config {

/// The numbers of a list; empty for even and balanced. UserError for other texts.
std::vector<int> numbers_of_split(const std::string& split);

/// UserError, with the arithmetic, if the numbers do not match the layers or the chunks.
void check_pipeline_split(const Config& config);

/// The time of the output layer and the loss in units of a layer's time, estimated from FLOPs. Relative to a FLOP of a
/// BF16 GEMM, one of an FP8 GEMM takes 0.53 of the time, and one of attention, whose backward pass recomputes the
/// scores, twice the time; norms, activations and quantization add 8% to a layer. The factors were measured with a
/// layer of Llama 2 7B on an H200.
double output_layer_in_layers(const Config& config);

}  // namespace te::config
