// How long an optimizer step takes under a layout.
//
//   step = pipeline(passes of the stages) + casts of the weights + what data messages do not hide + update
//
//   passes     of a microbatch through each piece of the pipeline, from a rehearsal; the schedule itself runs on a
//              clock (parallel/schedule/simulate.h), with the stages as unequal as they are. A message between stages
//              travels when its receiver has come to it; one by copies as soon as it is made.
//   data       gradients are reduced beside the last microbatch's backward pass of a stage, values gathered beside the
//              first forward pass (parallel.shard gradients, parameters: beside every one); what is longer than the
//              pass waits, what is hidden costs Gpu::overlap_cost, and the last bucket is never hidden.
//   update     the slowest stage's.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "config/config.h"
#include "planner/cost_trace.h"

namespace te::planner {

/// Seconds of a step; the parts add up to the whole.
struct StepTime {
  double compute = 0;   ///< passes, mean of the stages
  double messages = 0;  ///< of tensor and context ranks, likewise
  double pipeline = 0;  ///< in which the mean stage waits: bubble, unequal stages, messages between stages
  double data = 0;      ///< messages of data ranks that nothing hides, or what they cost passes beside them
  double update = 0;    ///< casts of the weights, norm, moments, parameters
  double total() const { return compute + messages + pipeline + data + update; }
};

/// Predicts steps of one config's model, batch and precision under the layouts of a cluster. Keeps what it has
/// rehearsed.
class StepModel {
 public:
  explicit StepModel(const Cluster& cluster) : cluster_(cluster) {}

  /// `config`: valid, with the layout in its parallel and training sections, for all GPUs of the cluster.
  StepTime predict(const config::Config& config);
  /// As long at least: without the pipeline's bubble, and much sooner found.
  double min_seconds(const config::Config& config);
  /// Bytes of a rank that the layout needs at least: values, gradients, main parameters, moments and what the first
  /// stage keeps of its microbatches. Less than the plan, for leaving layouts out before they are planned.
  double min_bytes(const config::Config& config);

  const Cluster& cluster() const { return cluster_; }

 private:
  using PassesKey =
      std::tuple<int64_t, int64_t, bool, config::Transport, int64_t, int64_t, config::Recompute, bool>;
  using UpdateKey = std::tuple<int64_t, int64_t, int>;
  /// `seconds`: of the pipeline.
  template <class Seconds>
  StepTime parts(const config::Config& config, const Seconds& seconds);
  const MicrobatchCost& passes(const config::Config& config);
  const UpdateWork& update(const config::Config& config, int data);

  Cluster cluster_;
  std::map<PassesKey, MicrobatchCost> passes_;
  std::map<UpdateKey, UpdateWork> updates_;
};

}  // namespace te::planner
