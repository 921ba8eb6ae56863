// What tasks say of the model while it trains (evaluation.*): results like those of te-generate evaluate, in the logs
// of the step.
//
// This room knows neither tasks nor decoders. te-train, which sees both rooms, gives the trainer a Evaluator
// (apps/train/decoded_tasks.h); its memory is part of the run's plan, and the weights are the run's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/memory_plan.h"
#include "parameters/parameter_store.h"

namespace te::train {

struct TaskMetric {
  std::string name;             ///< acc, acc_norm, perplexity, ...
  double value = 0;             ///< NaN: the model's logits were not finite
  std::optional<double> error;  ///< standard error of the mean, where there is one
};

struct TaskResult {
  std::string task;
  std::vector<TaskMetric> metrics;
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  virtual void plan(MemoryPlan& plan) = 0;
  /// After the plan's allocation, once.
  virtual void bind(const parameters::ParameterStore& weights) = 0;
  /// Tasks and metrics in the order of evaluate(), which do not change.
  virtual std::vector<TaskResult> names() const = 0;
  /// With the weights as they are, between two steps. All ranks of the job call it and get the same.
  virtual std::vector<TaskResult> evaluate() = 0;
};

}  // namespace te::train
