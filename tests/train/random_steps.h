// Steps on random tokens, for tests of settings that must not change a bit of them, and what they gather.
#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "core/profile.h"
#include "core/random.h"
#include "layout_cases.h"
#include "train/step_runner.h"

namespace te::testing {

struct RandomSteps {
  int steps = 0;
  parameters::DataParallelOptions data_parallel{};
  int skipped = 0;  ///< this step is skipped; 0: none
  int warm_up = 0;  ///< call StepRunner::warm_up() before this step, with the previous tokens; 0: never
};

/// Loss and gradient norm of every step, the same on all ranks.
inline std::vector<float> run_random_steps(const Context& context, const config::Config& config,
                                           const parallel::Groups& groups, const RandomSteps& options) {
  train::StepRunner runner(config, context, groups, options.data_parallel);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  const int64_t seq = config.model.seq_length, global = config.training.global_batch_size;
  batch.counted = global * seq;
  std::vector<float> trace;
  for (int step = 1; step <= options.steps; ++step) {
    if (step == options.warm_up) runner.warm_up(batch);
    for (int64_t i = 0; i < runner.local_samples() * seq; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(step),
                                    static_cast<uint64_t>(runner.first_local_sample() * seq + i));
      batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % config.model.vocab_size);
      batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % config.model.vocab_size);
    }
    const double largest_loss = step == options.skipped ? 0.0 : std::numeric_limits<double>::infinity();
    runner.launch(batch, step, (step - 1) * global, step == 2, largest_loss);
    context.synchronize();
    const optim::StepStatus status = runner.optimizer().status();
    trace.push_back(status.loss_sum);
    trace.push_back(status.grad_norm);
    runner.optimizer().finish_step(status.skipped != 0);
  }
  return trace;
}

inline std::vector<float> run_random_steps(const Context& context, const config::Config& config,
                                           const parallel::Groups& groups, int steps) {
  return run_random_steps(context, config, groups, RandomSteps{.steps = steps});
}

/// Counts the bytes that all-gathers receive while it exists.
class Gathered final : public OpObserver {
 public:
  Gathered() { install(this); }
  ~Gathered() override { install(nullptr); }
  void begin(const Context&, OpCall call) override {
    if (std::string_view(call.name) == "all_gather") bytes += static_cast<int64_t>(call.cost.bytes);
  }
  void end(const Context&) override {}
  int64_t bytes = 0;
};

}  // namespace te::testing
