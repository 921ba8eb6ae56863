// Optimizer steps of a config on one rank, for tests of the training state.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "core/random.h"
#include "train/step_runner.h"

namespace te::testing {

using Trains = std::function<bool(const ParameterId&)>;

class TrainingRun {
 public:
  explicit TrainingRun(config::Config config, const Trains& trains = {}, Context context = Context::cpu())
      : context_(std::move(context)), config_((config.trains = trains, std::move(config))) {
    runner_.allocate();
    runner_.initialize();
  }
  /// A step on random tokens. Returns the loss, summed over the tokens.
  float step(int number, bool count = false) {
    train::HostBatch batch = runner_.make_host_batch();
    batch.counted = config_.training.global_batch_size * config_.model.seq_length;
    for (int64_t i = 0; i < batch.counted; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(number), static_cast<uint64_t>(i));
      batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % 61);
      batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % 61);
    }
    return step(batch, number, count);
  }
  float step(const train::HostBatch& batch, int number, bool count = false) {
    runner_.launch(batch, number, (number - 1) * config_.training.global_batch_size, count);
    context_.synchronize();
    runner_.optimizer().finish_step(runner_.optimizer().status().skipped != 0);
    return runner_.optimizer().status().loss_sum;
  }
  std::deque<parameters::Parameter>& parameters() { return runner_.model().parameters().parameters(); }
  train::StepRunner& runner() { return runner_; }
  const config::Config& config() const { return config_; }
  const Context& context() const { return context_; }

 private:
  Context context_;
  config::Config config_;
  train::StepRunner runner_{config_, context_};
};

/// The bytes of a tensor on the CPU.
inline std::string bytes_at(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.data), tensor.bytes()};
}

/// Three steps of a run whose base is held in FP8 only and of one that keeps it in BF16: equal losses and adapters.
inline void expect_bits_of_kept_base(TrainingRun& held, TrainingRun& kept) {
  for (int step = 1; step <= 3; ++step) EXPECT_EQ(held.step(step), kept.step(step)) << step;
  for (size_t i = 0; i < held.parameters().size(); ++i) {
    const parameters::Parameter &a = held.parameters()[i], &b = kept.parameters()[i];
    if (a.trainable) {
      EXPECT_EQ(bytes_at(a.main), bytes_at(b.main)) << a.name;
    }
    EXPECT_TRUE(b.value) << b.name;
  }
}

}  // namespace te::testing
