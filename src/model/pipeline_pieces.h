// Which layers each piece of the pipeline owns, as parallel.pipeline_split says.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace te::model {

/// (first layer, number of layers) of every piece in model order; parallel/schedule/schedule.h says which stage has it.
/// `stages`: of the groups, one where a rank has all of the model whatever the config says.
std::vector<std::pair<int, int>> pipeline_pieces(const config::Config& config, int stages);

/// The same of the config's stages as the key's list of numbers, for configs that differ in what `balanced` goes by.
std::string pipeline_split_text(const config::Config& config);

/// One line for the start of a run with a pipeline: layers of each stage, and how much more than the mean the slowest
/// one has to do. "" without a pipeline.
std::string pipeline_summary(const config::Config& config);

}  // namespace te::model
