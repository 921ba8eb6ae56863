// The tasks that a run is judged by (evaluation.*): what te-generate evaluate does, with the decoder on the weights of
// te-train (run_decoder.h). The replicas of the model share the documents.
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parallel/world.h"
#include "train/task_results.h"

namespace te::apps {

/// Null without evaluation.every. World and groups must outlive it. UserError when a task or its data cannot be used,
/// or the tokenizer is not the model's.
std::unique_ptr<train::Evaluator> make_evaluator(const config::Config& config, const Context& context,
                                                 parallel::World& world, const parallel::Groups& groups);

}  // namespace te::apps
