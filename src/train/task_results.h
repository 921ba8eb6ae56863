// Results of evaluations on tasks during training (evaluation.*), like those of te-generate evaluate, in the step's
// logs.
//
// The train library does not depend on tasks or decoders: te-train gives the trainer an Evaluator
// (apps/train/decoded_tasks.h). Its memory is part of the run's plan, and it uses the run's weights.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/memory_plan.h"
#include "parameters/parameter_store.h"

namespace te::train {

struct TaskMetric {
  std::string name;             ///< acc, acc_norm, perplexity, ...
  double value = 0;             ///< NaN if the model's logits are not finite
  std::optional<double> error;  ///< standard error of the mean, if known
};

struct TaskResult {
  std::string task;
  std::vector<TaskMetric> metrics;
};

class Evaluator {
 public:
  virtual ~Evaluator() = default;
  virtual void plan(MemoryPlan& plan) = 0;
  /// Call once, after the plan's memory is allocated.
  virtual void bind(const parameters::ParameterStore& weights) = 0;
  /// Tasks and metrics in the order of evaluate(); constant.
  virtual std::vector<TaskResult> names() const = 0;
  /// Evaluates the current weights, between two steps. Collective over all ranks; all get the same result.
  virtual std::vector<TaskResult> evaluate() = 0;
};

}  // namespace te::train
