// Evaluation tasks during training (evaluation.*): te-generate evaluate with the weights of te-train (run_decoder.h).
// The documents are divided among the replicas of the model.
#pragma once

#include <memory>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parallel/world.h"
#include "train/task_results.h"

namespace te::apps {

/// Null without evaluation.every. `world` and `groups` must outlive it. UserError if a task or its data cannot be used,
/// or the tokenizer does not match the model.
std::unique_ptr<train::Evaluator> make_evaluator(const config::Config& config, const Context& context,
                                                 parallel::World& world, const parallel::Groups& groups);

/// For a memory plan only: without the tokenizer or the task data on this machine, it has no tasks, and its KV cache
/// is for sequences of the context length.
std::unique_ptr<train::Evaluator> plan_evaluator(const config::Config& config, const Context& context,
                                                 parallel::World& world, const parallel::Groups& groups);

}  // namespace te::apps
