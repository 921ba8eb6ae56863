// The cost of one microbatch's passes and of the update, per layer, by tracing: the program's model and optimizer run
// on a context that reports every operation in order, while none is executed and no memory is allocated
// (Context::trace). Operations, shapes and communication are thus those of the program, for every recipe, layout
// and recompute setting; op_time.h predicts the time of each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "config/config.h"
#include "core/parameter_id.h"
#include "planner/gpu.h"
#include "train/summary.h"

namespace te::planner {

/// Seconds on one rank.
struct Work {
  double compute = 0;
  double communication = 0;  ///< tensor-parallel and context-parallel communication, not overlapped
  double total() const { return compute + communication; }
  Work& operator+=(const Work& other);
};

/// Parameters of this rank.
struct ParameterCounts {
  int64_t all = 0;
  int64_t fp8 = 0;  ///< of these, weights that are gathered as one byte
  int64_t trained = 0;
  ParameterCounts& operator+=(const ParameterCounts& other);
};
/// By GradientGroup.
struct GroupCounts : std::array<ParameterCounts, kGradientGroups.size()> {
  int64_t all() const;
  int64_t trained() const;
  GroupCounts& operator+=(const GroupCounts& other);
};

/// A layer, or an end of the model: the embedding, or final norm, output layer and loss.
struct LayerCost {
  Work forward;
  Work backward;       ///< with wgrad, unless deferred
  Work wgrad;          ///< deferred wgrad
  Work first_forward;  ///< of a step's first microbatch, with quantization of weights
  GroupCounts parameters;
};

struct MicrobatchCost {
  LayerCost embedding, output_layer;
  std::vector<LayerCost> layers;  ///< of all layers; one element if they are alike
  const LayerCost& layer(int64_t index) const {
    return layers[layers.size() == 1 ? 0 : static_cast<size_t>(index)];
  }
  int64_t activation_bytes = 0;      ///< kept per layer and microbatch: lower bound, average
  int64_t deferred_wgrad_bytes = 0;  ///< likewise, in addition, for a deferred wgrad
};

/// Traces tensor- times context-parallel ranks. `deferred_wgrad`: weight gradients are deferred (zero_bubble). Other
/// dimensions of the layout are ignored. The config must be valid.
MicrobatchCost trace_microbatch(const config::Config& given, const Cluster& cluster, bool deferred_wgrad);

/// The GEMMs of a microbatch's passes, traced likewise, and the kernels that the device of `context` runs for them.
/// Empty if the plan exceeds the address space.
std::vector<train::GemmUse> trace_gemms(const config::Config& given, const Context& context);

/// Seconds of the update (gradient norm, moments, parameters) without data-parallel communication, in proportion to
/// what a rank updates.
struct UpdateWork {
  double per_parameter = 0;  ///< of this rank's shard
  double per_layer = 0;      ///< of Muon
  double host_bytes = 0;     ///< per parameter, likewise: optimizer.offload's transfers in each direction
};
/// Traces tensor- times context-parallel ranks with `data` data-parallel ranks.
UpdateWork trace_update(const config::Config& given, const Cluster& cluster, int data);

}  // namespace te::planner
