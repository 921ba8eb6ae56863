#include "train/routing.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "kernels/moe/router.h"

namespace te::train {
namespace {

/// values += those of all other ranks.
template <class T>
void add_ranks(parallel::World& world, std::vector<T>& values) {
  if (world.size() == 1) return;
  const std::string own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  std::fill(values.begin(), values.end(), T{});
  for (const std::string& rank : world.gather_strings(own)) {
    TE_CHECK(rank.size() == own.size(), "ranks have {} and {} bytes of routing", own.size(), rank.size());
    std::vector<T> theirs(values.size());
    std::memcpy(theirs.data(), rank.data(), rank.size());
    std::transform(values.begin(), values.end(), theirs.begin(), values.begin(), std::plus<>());
  }
}

}  // namespace

RoutingReader::RoutingReader(const Context& context, const model::RoutingStatistics& statistics)
    : context_(context),
      statistics_(statistics),
      counts_(context, statistics.counts.bytes()),
      sums_(context, statistics.sums.bytes()) {}

void RoutingReader::fetch() {
  if (!statistics_.counts) return;
  context_.copy_to_host(counts_.as<void>(), statistics_.counts);
  context_.copy_to_host(sums_.as<void>(), statistics_.sums);
  rounds_.assign(statistics_.rounds, statistics_.rounds + statistics_.counts.rows());
}

std::vector<LayerRouting> RoutingReader::read(parallel::World& world) const {
  std::vector<LayerRouting> layers;
  if (!statistics_.counts) return layers;
  const auto experts = static_cast<size_t>(statistics_.counts.cols());
  std::vector<int64_t> counts(counts_.as<int32_t>(), counts_.as<int32_t>() + statistics_.counts.numel());
  std::vector<double> sums(sums_.as<float>(), sums_.as<float>() + statistics_.sums.numel()), rounds = rounds_;
  add_ranks(world, counts);
  add_ranks(world, sums);
  add_ranks(world, rounds);
  for (int64_t layer = 0; layer < statistics_.counts.rows(); ++layer) {
    const double* const sum = sums.data() + layer * kernels::kRouterSums;
    const double microbatches = sum[3];
    if (microbatches == 0.0) continue;
    const auto first = counts.begin() + layer * static_cast<int64_t>(experts);
    const auto [least, most] = std::minmax_element(first, first + static_cast<int64_t>(experts));
    const double mean =
        static_cast<double>(std::accumulate(first, first + static_cast<int64_t>(experts), int64_t{0})) /
        static_cast<double>(experts);
    layers.push_back({.layer = static_cast<int>(layer),
                      .load_max = static_cast<double>(*most) / mean,
                      .load_min = static_cast<double>(*least) / mean,
                      .entropy = sum[2] / microbatches,
                      .balance_loss = sum[0] / microbatches,
                      .z_loss = sum[1] / microbatches,
                      .dropped = sum[kernels::kRouterDropped] / (mean * static_cast<double>(experts)),
                      .dispatch_rounds = rounds[static_cast<size_t>(layer)] / microbatches});
  }
  return layers;
}

}  // namespace te::train
