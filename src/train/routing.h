// Statistics of the routers of a step's mixtures of experts, for metrics.jsonl and TensorBoard.
#pragma once

#include <vector>

#include "core/device.h"
#include "model/feed_forward.h"
#include "parallel/world.h"

namespace te::train {

struct LayerRouting {
  int layer = 0;
  double load_max = 0;  ///< tokens of the expert with the most, over the mean of all experts; 1 is balanced
  double load_min = 0;  ///< likewise of the expert with the fewest
  double entropy = 0;   ///< mean entropy of a token's scores, in nats
  double balance_loss = 0;  ///< without coefficient; 1 if balanced
  double z_loss = 0;        ///< mean squared logsumexp of a token's logits, without coefficient
  double dropped = 0;       ///< share of the selections
  double dispatch_rounds =
      0;  ///< mean rounds of a dispatch to other ranks' experts (model/expert_dispatch.h); 0: none
};

/// Copies the statistics to the host together with a step's status, so that reading them needs no extra wait.
class RoutingReader {
 public:
  RoutingReader(const Context& context, const model::RoutingStatistics& statistics);
  /// Launches the copies; read() is valid after the next synchronize of the context.
  void fetch();
  /// All layers with experts, over all ranks. Collective. Empty without experts.
  std::vector<LayerRouting> read(parallel::World& world) const;

 private:
  const Context& context_;
  model::RoutingStatistics statistics_;
  HostBuffer counts_, sums_;
  std::vector<double> rounds_;
};

}  // namespace te::train
