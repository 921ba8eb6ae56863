// Assigns layers to the global chunks of the pipeline.
#pragma once

#include <utility>
#include <vector>

namespace te::parallel {

/// (first layer, number of layers) of every global chunk g = chunk * stages + stage, in model order. The runs are
/// contiguous and cover all layers.
///
/// Every chunk gets layers / (stages * chunks) layers. The remaining layers are assigned one at a time:
///   1. to the stage with the fewest extra layers so far, because the slowest stage determines the step time;
///   2. among these to the stage nearest to the middle of the pipeline, because the first stage also has the embedding,
///      and the last one the output layer and the loss; of two equally near stages to the earlier one, because the
///      output layer costs more than the embedding;
///   3. within the stage to the chunk nearest to the middle of the model, the earlier of two.
/// UserError, with the arithmetic, if a chunk would have no layer.
std::vector<std::pair<int, int>> split_layers(int layers, int stages, int chunks);

/// Like split_layers(), but minimizes the work of the slowest stage. `head` is the work of the output layer and loss on
/// the last global chunk, in units of a layer's work. Starting from split_layers(), layers move one by one from the
/// stage with the most work to the stage with the least, while that helps. Within the last stage they are taken from
/// the chunk with the output layer, within other stages from the chunk with the most layers.
std::vector<std::pair<int, int>> split_layers_by_time(int layers, int stages, int chunks, double head);

/// (first layer, number of layers) of global chunks with these numbers of layers.
std::vector<std::pair<int, int>> runs_of(const std::vector<int>& counts);

}  // namespace te::parallel
