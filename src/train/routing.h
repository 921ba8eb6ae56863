// Statistics of the routers of a step's mixtures of experts, for metrics.jsonl and TensorBoard.
#pragma once

#include <optional>
#include <vector>

#include "core/device.h"
#include "model/feed_forward.h"
#include "parallel/world.h"
#include "parameters/parameter_store.h"

namespace te::train {

struct LayerRouting {
  int layer = 0;
  double load_max = 0;  ///< tokens of the expert with the most, over the mean of all experts; 1 is balanced
  double load_min = 0;  ///< likewise of the expert with the fewest
  double entropy = 0;   ///< mean entropy of a token's scores, in nats
  double balance_loss = 0;        ///< without coefficient; 1 if balanced
  double z_loss = 0;              ///< mean squared logsumexp of a token's logits, without coefficient
  std::optional<double> dropped;  ///< share of the selections, with a capacity
  double dispatch_rounds =
      0;  ///< mean rounds of a dispatch to other ranks' experts (model/expert_dispatch.h); 0: none
  std::optional<double>
      bias_range;  ///< largest minus smallest bias of the experts after the step, if they have biases
};

/// Copies the statistics to the host together with a step's status, so that reading them needs no extra wait.
class RoutingReader {
 public:
  /// The store, of the model, must outlive the object.
  RoutingReader(const Context& context, const model::RoutingStatistics& statistics,
                const parameters::ParameterStore& store);
  /// Launches the copies; read() is valid after the next synchronize of the context.
  void fetch();
  /// All layers with experts, over all ranks. Collective. Empty without experts.
  std::vector<LayerRouting> read(parallel::World& world) const;

 private:
  void fetch_biases();
  /// Per layer, over all ranks: the smallest and the negative largest bias; infinities without biases.
  std::vector<double> bias_bounds(parallel::World& world) const;

  const Context& context_;
  model::RoutingStatistics statistics_;
  const parameters::ParameterStore& store_;
  HostBuffer counts_, sums_;
  std::vector<double> rounds_;
  std::vector<const parameters::Parameter*> biases_;  ///< per layer; null: none
  HostBuffer bias_values_;            ///< [layers, experts]: this rank's master values come first
  std::vector<int64_t> bias_counts_;  ///< per layer
};

}  // namespace te::train
