// Restoring a copy of the training state.
#include "train/state_copy.h"

#include "core/random.h"
#include "layout_cases.h"
#include "testing/testing.h"
#include "train/execution.h"
#include "train/step_runner.h"

namespace te::testing {
namespace {

std::vector<uint8_t> bytes_of(const Context& context, const Tensor& tensor) {
  std::vector<uint8_t> bytes(tensor.bytes());
  context.copy_to_host(bytes.data(), tensor);
  context.synchronize();
  return bytes;
}

// Quantizations are counted, and a requantization predicts the next scale: undone steps must leave no trace of either.
TEST(StateCopy, RestoresAllStateOfQuantization) {
  config::Config config = make_config({.family = Family::llama, .precision = Precision::delayed});
  config.precision.fp8_recast = true;
  const Context context = Context::cpu(train::execution_options(config));
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  train::HostBatch batch = runner.make_host_batch();
  const int64_t seq = config.model.seq_length, global = config.training.global_batch_size;
  batch.counted = global * seq;
  const auto step = [&](int64_t number) {
    for (int64_t i = 0; i < global * seq; ++i) {
      const Philox4 random = philox(3, static_cast<uint64_t>(number), static_cast<uint64_t>(i));
      batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % config.model.vocab_size);
      batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % config.model.vocab_size);
    }
    runner.launch(batch, number, (number - 1) * global, false);
    context.synchronize();
  };
  const fp8::ScaleTable& table = runner.model().recipe().table();
  ASSERT_TRUE(table.cast_states && table.predicted_scales);
  train::StateCopy copy(context, runner);
  step(1);
  const std::vector<Tensor> kept = {
      table.amax,     table.last_amax,        table.scale,      table.history, table.position,
      table.counters, table.predicted_scales, table.cast_states};
  std::vector<std::vector<uint8_t>> before;
  for (const Tensor& tensor : kept) before.push_back(bytes_of(context, tensor));
  copy.save();
  step(2);
  EXPECT_NE(bytes_of(context, table.cast_states), before.back());
  copy.restore();
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(bytes_of(context, kept[i]), before[i]) << i;
}

}  // namespace
}  // namespace te::testing
