#include "model/pipeline_chunks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "config/pipeline_split.h"
#include "core/error.h"
#include "parallel/schedule/split_layers.h"

namespace te::model {

namespace {

/// Layers of each chunk of the config's pipeline.
std::vector<int> counts_of(const config::Config& config) {
  std::vector<int> counts;
  for (const auto& [first, count] : pipeline_chunks(config, static_cast<int>(config.parallel.pipeline)))
    counts.push_back(count);
  return counts;
}

}  // namespace

std::vector<std::pair<int, int>> pipeline_chunks(const config::Config& config, int stages) {
  const int layers = static_cast<int>(config.model.num_layers),
            chunks = static_cast<int>(config.parallel.virtual_stages);
  const std::string& split = config.parallel.pipeline_split;
  if (stages != config.parallel.pipeline) return parallel::split_layers(layers, stages, chunks);
  if (split == "balanced")
    return parallel::split_layers_by_time(layers, stages, chunks, config::output_layer_in_layers(config));
  const std::vector<int> numbers = config::numbers_of_split(split);
  return numbers.empty() ? parallel::split_layers(layers, stages, chunks) : parallel::runs_of(numbers);
}

std::string pipeline_split_text(const config::Config& config) {
  return fmt::format("{}", fmt::join(counts_of(config), ","));
}

std::string pipeline_summary(const config::Config& config) {
  const auto stages = static_cast<size_t>(config.parallel.pipeline);
  if (stages == 1) return "";
  const std::vector<int> counts = counts_of(config);
  std::vector<double> work(stages);
  for (size_t chunk = 0; chunk < counts.size(); ++chunk) work[chunk % stages] += counts[chunk];
  const double output_layer = config::output_layer_in_layers(config);
  work.back() += output_layer;
  const double mean = std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(stages);
  const double excess = *std::max_element(work.begin(), work.end()) / mean - 1.0;
  return fmt::format(
      "pipeline: stages of {} layers (parallel.pipeline_split {}); the output layer on the last stage counts "
      "as about {:.1f} layers; the slowest stage has {:.0f}% more work than the mean\n",
      fmt::join(counts, ", "), config.parallel.pipeline_split, output_layer, 100.0 * excess);
}

}  // namespace te::model
