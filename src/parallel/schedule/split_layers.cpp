#include "parallel/schedule/split_layers.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "core/error.h"

namespace te::parallel {

namespace {

/// 0 .. count - 1, sorted by distance from the middle; of two equally near ones the earlier is first.
std::vector<int> middle_first(int count) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [count](int a, int b) { return std::abs(2 * a - (count - 1)) < std::abs(2 * b - (count - 1)); });
  return order;
}

}  // namespace

std::vector<std::pair<int, int>> split_layers(int layers, int stages, int chunks) {
  TE_CHECK(stages >= 1 && chunks >= 1, "{} stages of {} chunks", stages, chunks);
  const int global_chunks = stages * chunks;
  if (layers < global_chunks) {
    user_error(
        "model.num_layers ({}) is below parallel.pipeline x parallel.virtual_stages ({} x {} = {}): every "
        "virtual stage needs a layer; lower one of the two or raise model.num_layers by {}",
        layers, stages, chunks, global_chunks, global_chunks - layers);
  }
  // One round over the stages gives each stage an extra layer; the order within a round is step 2 of the rule.
  const std::vector<int> stage_order = middle_first(stages);
  const std::vector<int> chunk_order = middle_first(global_chunks);
  std::vector<int> counts(static_cast<size_t>(global_chunks), layers / global_chunks);
  for (int extra = 0; extra < layers % global_chunks; ++extra) {
    const int stage = stage_order[static_cast<size_t>(extra % stages)];
    const auto global_chunk = std::ranges::find_if(chunk_order, [&](int g) {
      return g % stages == stage && counts[static_cast<size_t>(g)] == layers / global_chunks;
    });
    ++counts[static_cast<size_t>(*global_chunk)];
  }
  return runs_of(counts);
}

std::vector<std::pair<int, int>> runs_of(const std::vector<int>& counts) {
  std::vector<std::pair<int, int>> split;
  int first = 0;
  for (const int count : counts) {
    split.emplace_back(first, count);
    first += count;
  }
  return split;
}

std::vector<std::pair<int, int>> split_layers_by_time(int layers, int stages, int chunks, double head) {
  std::vector<int> counts;
  for (const auto& [first, count] : split_layers(layers, stages, chunks)) counts.push_back(count);
  const auto global_chunks_of = [&](int stage) {
    std::vector<size_t> global_chunks;
    for (int chunk = 0; chunk < chunks; ++chunk)
      global_chunks.push_back(static_cast<size_t>(chunk * stages + stage));
    return global_chunks;
  };
  const auto work_of = [&](int stage) {
    double work = stage == stages - 1 ? head : 0.0;
    for (const size_t global_chunk : global_chunks_of(stage)) work += counts[global_chunk];
    return work;
  };
  for (;;) {
    int slowest = 0, fastest = 0;
    for (int stage = 1; stage < stages; ++stage) {
      if (work_of(stage) > work_of(slowest)) slowest = stage;
      if (work_of(stage) < work_of(fastest)) fastest = stage;
    }
    if (work_of(fastest) + 1.0 >= work_of(slowest)) break;
    // On the last stage take from the chunk with the output layer first; give to the chunk with the fewest layers. Each
    // chunk keeps at least one layer.
    size_t from = global_chunks_of(slowest).back(), to = global_chunks_of(fastest).front();
    for (const size_t global_chunk : global_chunks_of(slowest))
      if (counts[from] == 1 || (slowest != stages - 1 && counts[global_chunk] > counts[from]))
        from = global_chunk;
    for (const size_t global_chunk : global_chunks_of(fastest))
      if (counts[global_chunk] < counts[to]) to = global_chunk;
    if (counts[from] == 1) break;
    --counts[from];
    ++counts[to];
  }
  return runs_of(counts);
}

}  // namespace te::parallel
