#include "optim/moment_runs.h"

#include <algorithm>

#include "core/random.h"

namespace te::optim {

using parameters::Parameter;
using parameters::ParameterShard;
using parameters::ParameterStore;

std::vector<MomentRuns> moment_runs(const ParameterStore& parameters) {
  const std::vector<parameters::Segment>& segments = parameters.segments();
  std::vector<MomentRuns> result(segments.size());
  for (const Parameter& parameter : parameters.parameters()) {
    const ParameterShard& shard = parameter.shard;
    if (!parameter.trainable) continue;
    for (const ParameterStore::ShardRange& range : parameters.shard_ranges(parameter)) {
      const auto after = std::ranges::upper_bound(segments, range.shard, {}, &parameters::Segment::shard);
      const auto segment = after - 1;
      for (const ParameterShard::Extent& extent : shard.extents(range.local, range.local + range.count)) {
        result[segment - segments.begin()].runs.push_back(
            {.begin = range.shard - segment->shard + extent.local - range.local,
             .stream = stream_of("moments of " + parameter.name),
             .region = {.local_cols = shard.cols,
                        .first_local = extent.in_range,
                        .global_row = extent.row,
                        .global_col = shard.first_col,
                        .global_cols = shard.global_cols()}});
      }
    }
  }
  return result;
}

MomentRuns MomentRuns::part(int64_t first, int64_t count) const {
  MomentRuns result;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool ends_before = i + 1 < runs.size() && runs[i + 1].begin <= first;
    if (ends_before || runs[i].begin >= first + count) continue;
    result.runs.push_back(runs[i]);
    result.runs.back().begin -= first;
  }
  return result;
}

int64_t bytes_of(const std::vector<MomentRuns>& segments) {
  int64_t bytes = 0;
  for (const MomentRuns& segment : segments) bytes += segment.bytes();
  return bytes;
}

}  // namespace te::optim
