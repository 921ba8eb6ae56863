#include "train/routing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/moe/router.h"

namespace te::train {
namespace {

/// Combines the values of all ranks, which `add` maps two of to one: a sum by default.
template <class T, class Add = std::plus<>>
void add_ranks(parallel::World& world, std::vector<T>& values, Add add = {}) {
  if (world.size() == 1) return;
  const std::string own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  bool first = true;
  for (const std::string& rank : world.gather_strings(own)) {
    TE_CHECK(rank.size() == own.size(), "ranks have {} and {} bytes of routing", own.size(), rank.size());
    std::vector<T> theirs(values.size());
    std::memcpy(theirs.data(), rank.data(), rank.size());
    if (first)
      values = theirs;
    else
      std::transform(values.begin(), values.end(), theirs.begin(), values.begin(), add);
    first = false;
  }
}

}  // namespace

RoutingReader::RoutingReader(const Context& context, const model::RoutingStatistics& statistics,
                             const parameters::ParameterStore& store)
    : context_(context),
      statistics_(statistics),
      store_(store),
      counts_(context, statistics.counts.bytes()),
      sums_(context, statistics.sums.bytes()) {
  if (!statistics.counts) return;
  const auto layers = static_cast<size_t>(statistics.counts.rows());
  biases_.resize(layers), bias_counts_.resize(layers);
  bias_values_ = HostBuffer(context, static_cast<size_t>(statistics.counts.numel()) * sizeof(float));
  for (const parameters::Parameter& p : store.parameters())
    if (p.id.role == ParameterRole::router && p.id.part == ParameterPart::bias && p.trainable)
      biases_[static_cast<size_t>(p.id.layer)] = &p;
}

void RoutingReader::fetch() {
  if (!statistics_.counts) return;
  context_.copy_to_host(counts_.as<void>(), statistics_.counts);
  context_.copy_to_host(sums_.as<void>(), statistics_.sums);
  rounds_.assign(statistics_.rounds, statistics_.rounds + statistics_.counts.rows());
  fetch_biases();
}

void RoutingReader::fetch_biases() {
  for (size_t layer = 0; layer < biases_.size(); ++layer) {
    bias_counts_[layer] = 0;
    if (biases_[layer] == nullptr) continue;
    float* const values = bias_values_.as<float>() + static_cast<int64_t>(layer) * statistics_.counts.cols();
    for (const auto& range : store_.shard_ranges(*biases_[layer])) {
      context_.copy_to_host(values + bias_counts_[layer], store_.main_of(*biases_[layer], range).fp32);
      bias_counts_[layer] += range.count;
    }
  }
}

std::vector<double> RoutingReader::bias_bounds(parallel::World& world) const {
  std::vector<double> bounds(2 * biases_.size(), std::numeric_limits<double>::infinity());
  for (size_t layer = 0; layer < biases_.size(); ++layer)
    for (int64_t i = 0; i < bias_counts_[layer]; ++i) {
      const double bias =
          bias_values_.as<float>()[static_cast<int64_t>(layer) * statistics_.counts.cols() + i];
      bounds[2 * layer] = std::min(bounds[2 * layer], bias);
      bounds[2 * layer + 1] = std::min(bounds[2 * layer + 1], -bias);
    }
  add_ranks(world, bounds, [](double a, double b) { return std::min(a, b); });
  return bounds;
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
  const std::vector<double> bounds = bias_bounds(world);
  for (int64_t layer = 0; layer < statistics_.counts.rows(); ++layer) {
    const double* const sum = sums.data() + layer * kernels::kRouterSums;
    const double microbatches = sum[3], tokens = std::max(sum[4], 1.0);
    if (microbatches == 0.0) continue;
    const auto first = counts.begin() + layer * static_cast<int64_t>(experts);
    const auto [least, most] = std::minmax_element(first, first + static_cast<int64_t>(experts));
    const double mean =
        static_cast<double>(std::accumulate(first, first + static_cast<int64_t>(experts), int64_t{0})) /
        static_cast<double>(experts);
    layers.push_back({.layer = static_cast<int>(layer),
                      .load_max = static_cast<double>(*most) / mean,
                      .load_min = static_cast<double>(*least) / mean,
                      .entropy = sum[2] / tokens,
                      .balance_loss = sum[0] / tokens,
                      .z_loss = sum[1] / tokens,
                      .dropped = {},
                      .dispatch_rounds = rounds[static_cast<size_t>(layer)] / microbatches,
                      .bias_range = {}});
    const double* const limited = sum + kernels::kRouterDropped;
    if (limited[1] > 0.0) layers.back().dropped = limited[0] / limited[1];
    const auto at = static_cast<size_t>(2 * layer);
    if (std::isfinite(bounds[at])) layers.back().bias_range = -bounds[at + 1] - bounds[at];
  }
  return layers;
}

}  // namespace te::train
