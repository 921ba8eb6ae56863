// Which layers a piece of the pipeline owns.
#pragma once

#include <utility>
#include <vector>

namespace te::parallel {

/// (first layer, number of layers) of every global chunk g = chunk * stages + stage, in model order: the runs
/// follow each other and cover all layers.
///
/// Every chunk gets layers / (stages * chunks). The remainder is dealt out one layer at a time:
///   1. to the stage that has the fewest extra layers so far, because the slowest stage sets the pace;
///   2. among these to the one nearest the middle of the pipeline, because the first stage also has the
///      embedding and the last the head and the loss; of two equally near ones to the earlier, because the
///      head costs more than the embedding;
///   3. within the stage to the chunk nearest the middle of the model, the earlier of two.
/// UserError, with the arithmetic, when a chunk would have no layer.
std::vector<std::pair<int, int>> split_layers(int layers, int stages, int chunks);

/// The same, with the last piece having `head` layers' work besides its layers, such that the slowest stage has as
/// little to do as is possible. Layers move one by one from the stage of split_layers() that has most to the one that
/// has least, as long as that helps; within a stage they leave the piece with the head, or else the one with most
/// layers.
std::vector<std::pair<int, int>> split_layers_by_time(int layers, int stages, int chunks, double head);

/// Of pieces of so many layers.
std::vector<std::pair<int, int>> runs_of(const std::vector<int>& counts);

}  // namespace te::parallel
