#include "parameters/parameter_shard.h"

#include <algorithm>

#include "core/error.h"

namespace te::parameters {

ParameterShard ParameterShard::full(Shape shape) {
  return {shape, {{0, shape[0]}}, 0, shape.rank() > 1 ? shape[1] : 1};
}

ParameterShard ParameterShard::of_rows(Shape global, const std::vector<int64_t>& blocks, int rank,
                                       int ranks) {
  ParameterShard shard = full(global);
  shard.rows.clear();
  int64_t top = 0;
  for (const int64_t height : blocks) {
    TE_CHECK(height % ranks == 0, "a block of {} rows over {} ranks", height, ranks);
    shard.rows.push_back({top + height / ranks * rank, height / ranks});
    top += height;
  }
  TE_CHECK(top == global[0], "blocks of {} rows in a parameter of {}", top, global[0]);
  if (ranks == 1) shard.rows = {{0, global[0]}};
  return shard;
}

ParameterShard ParameterShard::of_columns(Shape global, int rank, int ranks) {
  TE_CHECK(global.rank() == 2 && global[1] % ranks == 0, "columns of {} over {} ranks", global.str(), ranks);
  ParameterShard shard = full(global);
  shard.cols = global[1] / ranks;
  shard.first_col = shard.cols * rank;
  return shard;
}

int64_t ParameterShard::num_rows() const {
  int64_t count = 0;
  for (const Rows& range : rows) count += range.count;
  return count;
}

Shape ParameterShard::local() const {
  return global.rank() > 1 ? Shape{num_rows(), cols} : Shape{num_rows()};
}

std::vector<ParameterShard::Extent> ParameterShard::extents(int64_t begin, int64_t end) const {
  std::vector<Extent> result;
  int64_t first = 0;  // flat index of the row range's first element
  for (const Rows& range : rows) {
    const int64_t last = first + range.count * cols;
    const int64_t from = std::max(begin, first), to = std::min(end, last);
    if (from < to) result.push_back({from, to - from, range.first, from - first});
    first = last;
  }
  return result;
}

}  // namespace te::parameters
