#include "train/planned_rank.h"

#include "train/decoded_samples.h"
#include "train/decoded_tasks.h"

namespace te::apps {

PlannedRank::PlannedRank(const config::Config& config, const Context& context, parallel::World& world,
                         const parallel::Groups& groups)
    : runner_(config, context, groups),
      samples_(plan_sample_maker(config, context, groups)),
      tasks_(plan_evaluator(config, context, world, groups)) {
  if (samples_) samples_->plan(runner_.plan());
  if (tasks_) tasks_->plan(runner_.plan());
}

}  // namespace te::apps
