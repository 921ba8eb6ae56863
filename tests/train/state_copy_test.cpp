// The training state is what copies of it, warmup and checkpoints agree on.
#include "train/state_copy.h"

#include <map>

#include "checkpoint/checkpoint.h"
#include "core/random.h"
#include "layout_cases.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te::testing {
namespace {

/// With all kinds of state: a requantization predicts the next scale, and FP8 moments have exponents.
config::Config config_with_all_state(config::MomentDType moments = config::MomentDType::fp8) {
  config::Config config = make_config({.family = Family::llama, .precision = Precision::delayed});
  config.precision.fp8_recast = true;
  config.optimizer.exp_avg_dtype = config.optimizer.exp_avg_sq_dtype = moments;
  return config;
}

/// A run on random tokens.
class RandomRun {
 public:
  explicit RandomRun(const config::Config& config)
      : config_(config), context_(Context::cpu(train::execution_options(config))), runner_(config, context_) {
    runner_.allocate();
    runner_.initialize();
    batch_ = runner_.make_host_batch();
  }
  const Context& context() const { return context_; }
  train::StepRunner& runner() { return runner_; }
  const train::HostBatch& batch() const { return batch_; }

  void step(int64_t number, bool counts = true) {
    const int64_t seq = config_.model.seq_length, global = config_.training.global_batch_size;
    batch_.counted = global * seq;
    for (int64_t i = 0; i < global * seq; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(number), static_cast<uint64_t>(i));
      batch_.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % config_.model.vocab_size);
      batch_.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % config_.model.vocab_size);
    }
    runner_.launch(batch_, number, (number - 1) * global, counts);
    context_.synchronize();
    runner_.optimizer().finish_step(false);
  }

  /// The bytes of the state's tensors by name; `saved`: only of those that checkpoints have.
  std::map<std::string, std::vector<uint8_t>> state(bool saved = false) {
    std::map<std::string, std::vector<uint8_t>> result;
    for (const checkpoint::StateTensor& state : runner_.training_state().tensors()) {
      if (saved && !state.in_checkpoints) continue;
      std::vector<uint8_t>& bytes = result[state.name];
      bytes.resize(state.tensor.bytes());
      context_.copy_to_host(bytes.data(), state.tensor);
    }
    context_.synchronize();
    return result;
  }

 private:
  config::Config config_;
  Context context_;
  train::StepRunner runner_;
  train::HostBatch batch_;
};

/// Names of the tensors that differ.
std::vector<std::string> changed(const std::map<std::string, std::vector<uint8_t>>& a,
                                 const std::map<std::string, std::vector<uint8_t>>& b) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : a)
    if (bytes != b.at(name)) names.push_back(name);
  return names;
}

checkpoint::Progress some_progress() {
  checkpoint::Progress progress{.step = 2, .consumed_samples = 16, .updates = 2};
  progress.spikes = {.accepted = {4.5, 4.25}, .row = {9.0}, .total = 3, .since = 1};
  progress.guard.gaps = {0.01};
  progress.faults.skipped_total = 4;
  return progress;
}

using Names = std::vector<std::string>;

TEST(TrainingState, ListsAllTensorsOnce) {
  RandomRun run(config_with_all_state());
  Names names;
  for (const auto& [name, bytes] : run.state()) names.push_back(name);
  EXPECT_EQ(names,
            Names({"exp_avg", "exp_avg.exponents", "exp_avg_sq", "exp_avg_sq.exponents", "fp8.amax",
                   "fp8.amax_history", "fp8.counters", "fp8.history_position", "fp8.last_amax",
                   "fp8.predicted_scales", "fp8.scale", "fp8.tensor_states", "main_params", "parameters"}));
  // FP32 weights are their own master weights, and a plan's bytes are those of a bound run.
  config::Config config = make_config({.family = Family::gpt});
  RandomRun fp32(config);
  EXPECT_FALSE(fp32.state().contains("main_params"));
  const Context context = Context::cpu();
  train::StepRunner planned(config, context);
  EXPECT_EQ(train::state_copy_bytes(planned), train::state_copy_bytes(fp32.runner()));
}

// Quantizations are counted, and a requantization predicts the next scale: undone steps must leave no trace of either.
TEST(StateCopy, RestoresTensorsAndProgress) {
  RandomRun run(config_with_all_state());
  train::StateCopy copy(run.context(), run.runner());
  run.step(1), run.step(2);
  const auto before = run.state();
  copy.save(some_progress());
  run.step(3);
  EXPECT_GE(changed(before, run.state()).size(), before.size() - 2) << "a step changes the state";
  for (const checkpoint::StateTensor& state : run.runner().training_state().tensors())
    run.context().fill_bytes(state.tensor, 0x5a);
  EXPECT_EQ(changed(before, run.state()).size(), before.size());
  EXPECT_EQ(copy.restore(), some_progress());
  EXPECT_EQ(changed(before, run.state()), Names());
  EXPECT_EQ(run.runner().optimizer().updates(), 2);
}

// The next quantization uses the slot of amaxes that the last one has cleared, however many of them are undone.
TEST(StateCopy, RestoresTheNextSlots) {
  const auto state_after = [](int undone) {
    RandomRun run(config_with_all_state());
    train::StateCopy copy(run.context(), run.runner());
    run.step(1, false), run.step(2, false);
    copy.save(some_progress());
    run.runner().begin_evaluation();
    for (int i = 0; i < undone; ++i)
      run.runner().evaluate({run.batch().tokens.as<int32_t>(), run.batch().targets.as<int32_t>()});
    run.runner().finish_evaluation();
    copy.restore();
    run.step(3, false);
    return run.state();
  };
  const auto expected = state_after(0);
  for (const int undone : {1, 2}) EXPECT_EQ(changed(expected, state_after(undone)), Names()) << undone;
}

TEST(WarmUp, ChangesNoState) {
  RandomRun run(config_with_all_state());
  run.step(1), run.step(2);
  const auto before = run.state();
  run.runner().warm_up(run.batch());
  EXPECT_EQ(changed(before, run.state()), Names());
}

// Checkpoints have the values of FP8 moments, not their codes, of which several may have the same values.
TEST(Checkpoint, HasTheState) {
  const TemporaryFolder folder;
  config::Config config = config_with_all_state(config::MomentDType::bf16);
  RandomRun run(config);
  run.step(1), run.step(2);
  checkpoint::Saver saver(run.context(),
                          {.directory = folder.path().string(), .config = config::to_yaml(config)},
                          run.runner().training_state());
  saver.save(some_progress(), {}, true);
  config.training.seed += 1;
  RandomRun other(config);
  EXPECT_GE(changed(run.state(true), other.state(true)).size(), run.state(true).size() - 1);
  const checkpoint::Reader reader(saver.folder_of(2));
  const checkpoint::Loaded loaded =
      checkpoint::load(other.context(), reader, config, other.runner().training_state(), {});
  EXPECT_EQ(loaded.progress, some_progress());
  other.runner().publish_weights();
  other.runner().optimizer().gatherer().wait_all(other.context());
  EXPECT_EQ(changed(run.state(true), other.state(true)), Names());
}

}  // namespace
}  // namespace te::testing
