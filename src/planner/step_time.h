// Predicts the time of an optimizer step of a layout.
//
//   step = pipeline(passes of the stages) + quantization of weights + exposed data-parallel communication + update
//
//   passes     of a microbatch through each chunk of the pipeline, from a trace. The schedule is simulated
//              (parallel/schedule/simulate.h) with stages of unequal cost. Communication between stages starts when the
//              receiver is ready; with copy engines, as soon as the data is produced.
//   data       gradients are reduced during the last microbatch's backward pass of a stage, weights gathered during the
//              first forward pass (parallel.shard gradients, parameters: during every pass). What takes longer than the
//              pass is exposed, hidden communication costs Gpu::overlap_cost, and the last bucket is never hidden.
//   update     of the slowest stage.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "config/config.h"
#include "planner/cost_trace.h"

namespace te::planner {

/// Seconds of a step; the parts add up to the total.
struct StepTime {
  double compute = 0;        ///< passes, mean over the stages
  double communication = 0;  ///< tensor- and context-parallel communication, likewise
  double pipeline = 0;       ///< wait of the mean stage: bubble, imbalance, communication between stages
  double data = 0;           ///< exposed data-parallel communication, and its cost to overlapped passes
  double update = 0;         ///< quantization of weights, gradient norm, moments, parameters
  double total() const { return compute + communication + pipeline + data + update; }
};

/// Predicts steps of one config's model, batch and precision for layouts on a cluster. Caches traces.
class StepModel {
 public:
  explicit StepModel(const Cluster& cluster) : cluster_(cluster) {}

  /// `config`: valid, with the layout in its parallel and training sections, for all GPUs of the cluster.
  StepTime predict(const config::Config& config);
  /// Lower bound: without the pipeline bubble, and much faster to compute.
  double min_seconds(const config::Config& config);
  /// Lower bound of a rank's bytes: values, gradients, FP32 master weights, Adam moments and the activations of the
  /// first stage. Less than the plan; discards layouts before they are planned.
  double min_bytes(const config::Config& config);

  const Cluster& cluster() const { return cluster_; }

 private:
  using PassesKey = std::tuple<int64_t, int64_t, int64_t, bool, config::Transport, int64_t, int64_t,
                               config::Recompute, config::Fp8KeptWeights, bool>;
  using UpdateKey = std::tuple<int64_t, int64_t, int64_t, config::Fp8KeptWeights, int>;
  /// `seconds`: function that predicts the pipeline.
  template <class Seconds>
  StepTime parts(const config::Config& config, const Seconds& seconds);
  const MicrobatchCost& passes(const config::Config& config);
  const UpdateWork& update(const config::Config& config, int data);

  Cluster cluster_;
  std::map<PassesKey, MicrobatchCost> passes_;
  std::map<UpdateKey, UpdateWork> updates_;
};

}  // namespace te::planner
