// What the passes of one microbatch and the update do, unit by unit, found by a rehearsal: the program's own model and
// optimizer run with an observer that is told every operation, in order, while none is done and no memory is there
// (OpObserver::executes). So the operations, their shapes and what travels are those of the program, under every
// recipe, layout and way to recompute; op_time.h says how long each takes.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "planner/gpu.h"

namespace te::planner {

/// Seconds of one rank.
struct Work {
  double compute = 0;
  double messages = 0;  ///< over tensor and context ranks, which nothing hides (docs/log/benchmarks.md)
  double total() const { return compute + messages; }
  Work& operator+=(const Work& other);
};

/// A layer, or an end of the model: the embedding, or final norm, output layer and loss.
struct LayerCost {
  Work forward;
  Work backward;               ///< with wgrad, unless that is put off
  Work wgrad;                  ///< where it is put off
  Work first_forward;          ///< of a step's first microbatch: casts of the weights come before it
  int64_t parameters = 0;      ///< of this rank
  int64_t fp8_parameters = 0;  ///< of these: weights that travel in FP8 where data ranks gather them so
};

struct MicrobatchCost {
  LayerCost embedding, head;
  std::vector<LayerCost> layers;  ///< of all layers; one element where they are alike
  const LayerCost& layer(int64_t index) const {
    return layers[layers.size() == 1 ? 0 : static_cast<size_t>(index)];
  }
  int64_t activation_bytes = 0;      ///< of a layer, at least, on average: what a microbatch keeps of it
  int64_t deferred_wgrad_bytes = 0;  ///< likewise, and besides: for a weight gradient that is put off
};

/// Of parallel.tensor x context ranks; `deferred_wgrad`: weight gradients are (zero_bubble). The layout's other axes
/// are not looked at. The config is valid.
MicrobatchCost trace_microbatch(const config::Config& given, const Cluster& cluster, bool deferred_wgrad);

/// Seconds of the update without messages over data ranks: norm of the gradients, moments, parameters. In proportion to
/// what a rank has of each.
struct UpdateWork {
  double per_parameter = 0;  ///< of this rank, before the data ranks share them
  double per_layer = 0;      ///< Muon's
  double host_bytes = 0;     ///< of a parameter, likewise shared: what optimizer.offload moves, each way
};
/// Of parallel.tensor x context ranks and `data` data ranks.
UpdateWork trace_update(const config::Config& given, const Cluster& cluster, int data);

}  // namespace te::planner
