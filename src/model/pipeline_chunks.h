// The layers of each chunk (stage or virtual stage) of the pipeline, by parallel.pipeline_split.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace te::model {

/// (first layer, number of layers) of every chunk in model order; parallel/schedule/schedule.h assigns chunks to
/// stages. `stages`: number of stages of the groups, which is 1 if a rank has the complete model, whatever the config
/// says.
std::vector<std::pair<int, int>> pipeline_chunks(const config::Config& config, int stages);

/// The layers of the config's chunks as a list for parallel.pipeline_split, for other configs in which `balanced` would
/// give another split.
std::string pipeline_split_text(const config::Config& config);

/// One line for the start of a run with a pipeline: layers of each stage, and the excess work of the slowest stage over
/// the mean. "" without a pipeline.
std::string pipeline_summary(const config::Config& config);

}  // namespace te::model
