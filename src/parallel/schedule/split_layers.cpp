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
  std::stable_sort(order.begin(), order.end(), [count](int a, int b) {
    return std::abs(2 * a - (count - 1)) < std::abs(2 * b - (count - 1));
  });
  return order;
}

}  // namespace

std::vector<std::pair<int, int>> split_layers(int layers, int stages, int chunks) {
  TE_CHECK(stages >= 1 && chunks >= 1, "{} stages of {} chunks", stages, chunks);
  const int pieces = stages * chunks;
  if (layers < pieces) {
    user_error(
        "model.num_layers ({}) is below parallel.pipeline x parallel.virtual_stages ({} x {} = {}): every "
        "virtual stage needs a layer; lower one of the two or raise model.num_layers by {}",
        layers, stages, chunks, pieces, pieces - layers);
  }
  // One round over the stages gives each stage an extra layer; the order within a round is step 2 of the rule.
  const std::vector<int> stage_order = middle_first(stages);
  const std::vector<int> piece_order = middle_first(pieces);
  std::vector<int> counts(static_cast<size_t>(pieces), layers / pieces);
  for (int extra = 0; extra < layers % pieces; ++extra) {
    const int stage = stage_order[static_cast<size_t>(extra % stages)];
    const auto piece = std::find_if(piece_order.begin(), piece_order.end(), [&](int g) {
      return g % stages == stage && counts[static_cast<size_t>(g)] == layers / pieces;
    });
    ++counts[static_cast<size_t>(*piece)];
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
  const auto pieces_of = [&](int stage) {
    std::vector<size_t> pieces;
    for (int chunk = 0; chunk < chunks; ++chunk)
      pieces.push_back(static_cast<size_t>(chunk * stages + stage));
    return pieces;
  };
  const auto work_of = [&](int stage) {
    double work = stage == stages - 1 ? head : 0.0;
    for (const size_t piece : pieces_of(stage)) work += counts[piece];
    return work;
  };
  for (;;) {
    int most = 0, least = 0;
    for (int stage = 1; stage < stages; ++stage) {
      if (work_of(stage) > work_of(most)) most = stage;
      if (work_of(stage) < work_of(least)) least = stage;
    }
    if (work_of(least) + 1.0 >= work_of(most)) break;
    // On the last stage take from the chunk with the output layer first; give to the chunk with the fewest layers. Each
    // chunk keeps at least one layer.
    size_t from = pieces_of(most).back(), to = pieces_of(least).front();
    for (const size_t piece : pieces_of(most))
      if (counts[from] == 1 || (most != stages - 1 && counts[piece] > counts[from])) from = piece;
    for (const size_t piece : pieces_of(least))
      if (counts[piece] < counts[to]) to = piece;
    if (counts[from] == 1) break;
    --counts[from];
    ++counts[to];
  }
  return runs_of(counts);
}

}  // namespace te::parallel
