// The memory plan of any rank of a layout without running it: model, step, and decoders for samples and evaluation
// tasks.
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parallel/world.h"
#include "train/samples.h"
#include "train/step_runner.h"
#include "train/task_results.h"

namespace te::apps {

class PlannedRank {
 public:
  /// UserError if the layout has no schedule. Config, context, world and groups must outlive it.
  PlannedRank(const config::Config& config, const Context& context, parallel::World& world,
              const parallel::Groups& groups);
  train::StepRunner& runner() { return runner_; }
  const MemoryPlan& plan() const { return runner_.plan(); }

 private:
  train::StepRunner runner_;
  std::unique_ptr<train::SampleMaker> samples_;
  std::unique_ptr<train::Evaluator> tasks_;
};

}  // namespace te::apps
