// Steps through StepRunner: the FP8 counters count every operand exactly once per microbatch.
#include "train/step_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/profile.h"
#include "model/tiny_model.h"
#include "testing/testing.h"
#include "train/metrics.h"

namespace te {
namespace {

using fp8::OperandRole;

config::Config fp8_config(config::Fp8Recipe recipe, config::Recompute recompute) {
  config::Config config = testing::tiny_config(config::Family::llama);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = recipe;
  if (recipe == config::Fp8Recipe::mxfp8) config.model.ffn_hidden_size = 64;
  config.training.recompute = recompute;
  config.training.global_batch_size = 6;
  config::validate(config);
  return config;
}

train::HostBatch random_batch(const train::StepRunner& runner, const config::Config& config) {
  train::HostBatch batch = runner.make_host_batch();
  batch.counted = config.training.global_batch_size * config.model.seq_length;
  for (int64_t i = 0; i < batch.counted; ++i) {
    const Philox4 random = philox(3, 4, static_cast<uint64_t>(i));
    batch.tokens.as<int32_t>()[i] = static_cast<int32_t>(random.word[0] % 61);
    batch.targets.as<int32_t>()[i] = static_cast<int32_t>(random.word[1] % 61);
  }
  return batch;
}

TEST(StepRunner, CountersCountEveryOperandOncePerPass) {
  for (config::Fp8Recipe recipe :
       {config::Fp8Recipe::delayed, config::Fp8Recipe::tensorwise, config::Fp8Recipe::rowwise,
        config::Fp8Recipe::blockwise, config::Fp8Recipe::mxfp8}) {
    for (config::Recompute recompute : {config::Recompute::none, config::Recompute::full}) {
      const config::Config config = fp8_config(recipe, recompute);
      const Context context = Context::cpu();
      train::StepRunner runner(config, context);
      runner.allocate();
      runner.model().initialize(context, 1);
      runner.model().quantize_weights(context);
      const train::HostBatch batch = random_batch(runner, config);
      const fp8::ScaleTable& table = runner.model().recipe().table();
      std::map<std::string, std::pair<int64_t, int64_t>> shapes;  // of the weights: [out, in]
      for (const parameters::Parameter& parameter : runner.model().parameters().parameters()) {
        if (parameter.shape.rank() == 2 && parameter.id.layer != kNoLayer)
          shapes[parameter.name] = {parameter.shape[0], parameter.shape[1]};
      }
      ASSERT_EQ(table.size(), static_cast<int>(3 * shapes.size()));

      runner.launch(batch, 1, 0, false);
      for (int i = 0; i < table.size(); ++i)
        EXPECT_EQ(table.counters_of(i)->total, 0u) << table.info(i).linear.name();
      runner.launch(batch, 2, 6, true);
      for (int i = 0; i < table.size(); ++i) {
        const fp8::OperandInfo& info = table.info(i);
        const auto [out, in] = shapes.at(info.linear.name() + ".weight");
        const int64_t expected = info.role == OperandRole::weight  ? out * in
                                 : info.role == OperandRole::input ? batch.counted * in
                                                                   : batch.counted * out;
        EXPECT_EQ(table.counters_of(i)->total, static_cast<unsigned long long>(expected))
            << info.linear.name() << " " << role_name(info.role);
      }
    }
  }
}

struct StepResult {
  float loss_sum = 0, grad_norm = 0;
  std::vector<kernels::Fp8Counters> counters;
  std::vector<train::QuantizationStatistics> statistics;
};

StepResult step_of(const config::Config& config) {
  const Context context = Context::cpu();
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.initialize();
  const train::HostBatch batch = random_batch(runner, config);
  for (int step = 1; step <= 2; ++step) {
    runner.launch(batch, step, 6 * (step - 1), true);
    context.synchronize();
    const optim::StepStatus status = runner.optimizer().status();
    runner.optimizer().finish_step(status.skipped != 0);
  }
  StepResult result;
  result.loss_sum = runner.optimizer().status().loss_sum,
  result.grad_norm = runner.optimizer().status().grad_norm;
  const fp8::ScaleTable& table = runner.model().recipe().table();
  for (int i = 0; i < table.size(); ++i) result.counters.push_back(*table.counters_of(i));
  if (config.logging.fp8_statistics_every > 0) result.statistics = runner.observe(batch, 0).operands;
  return result;
}

// Codes and scales, as a Blackwell GPU multiplies them, instead of dequantized values.
TEST(StepRunner, NativeRecipesEqualTheirEmulationBitForBit) {
  for (const config::Fp8Recipe recipe : {config::Fp8Recipe::mxfp8, config::Fp8Recipe::nvfp4})
    for (const config::Family family : {config::Family::llama, config::Family::gpt}) {
      for (const config::Recompute recompute :
           {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
        config::Config config = fp8_config(recipe, recompute);
        config.model.family = family;
        config.model.ffn_hidden_size = 64;
        config.logging.fp8_statistics_every = 1;
        const StepResult emulated = step_of(config);
        config.precision.mx_gemms = true;
        const StepResult native = step_of(config);
        EXPECT_EQ(native.loss_sum, emulated.loss_sum);
        EXPECT_EQ(native.grad_norm, emulated.grad_norm);
        ASSERT_EQ(native.counters.size(), emulated.counters.size());
        for (size_t i = 0; i < native.counters.size(); ++i) {
          EXPECT_EQ(native.counters[i].flushed, emulated.counters[i].flushed) << i;
          EXPECT_EQ(native.counters[i].total, emulated.counters[i].total) << i;
        }
        ASSERT_EQ(native.statistics.size(), emulated.statistics.size());
        ASSERT_FALSE(native.statistics.empty());
        for (size_t i = 0; i < native.statistics.size(); ++i) {
          EXPECT_EQ(std::memcmp(&native.statistics[i].sums, &emulated.statistics[i].sums,
                                sizeof(kernels::TensorSums)),
                    0)
              << i;
          EXPECT_EQ(native.statistics[i].layouts, emulated.statistics[i].layouts) << i;
        }
      }
    }
}

/// The operations of a step up to its update, in order; on a GPU they determine the kernels, and so the rounding.
/// Without amax computations, which change nothing, and fills, with which debug builds poison unused memory.
class Operations final : public OpObserver {
 public:
  Operations() { install(this); }
  ~Operations() override { install(nullptr); }
  void begin(const Context&, OpCall call) override {
    const std::string_view name = call.name;
    if (!ended_ && name != "quantize" && name != "fill")
      list.push_back(fmt::format("{} ({})", call.name, call.label));
    ended_ = ended_ || name == "adamw";
  }
  void end(const Context&) override {}
  std::vector<std::string> list;

 private:
  bool ended_ = false;
};

std::vector<std::string> operations_of_a_step(const config::Config& config) {
  const Context context = Context::cpu();
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.model().initialize(context, 1);
  if (config.precision.fp8 != config::Fp8Mode::off) runner.model().recipe().set_high_precision(true);
  runner.model().quantize_weights(context);
  const train::HostBatch batch = random_batch(runner, config);
  const Operations operations;
  runner.launch(batch, 1, 0, false);
  return operations.list;
}

// In both cases the activation is fused into the GEMM.
TEST(StepRunner, Bf16StepsOfAnFp8RunEqualThoseOfABf16Run) {
  for (const config::Family family : {config::Family::llama, config::Family::gpt}) {
    for (const config::Recompute recompute :
         {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
      config::Config bf16 = testing::tiny_config(family);
      bf16.model.ffn_hidden_size = 64;
      bf16.precision.dtype = config::ComputeDType::bf16;
      bf16.training.recompute = recompute;
      bf16.training.global_batch_size = 6;
      const std::vector<std::string> expected = operations_of_a_step(bf16);
      const auto fused = [](const std::string& op) { return op.starts_with("gemm_activation"); };
      ASSERT_GT(std::ranges::count_if(expected, fused), 0);
      ASSERT_EQ(expected.back(), "adamw ()");
      for (const config::Fp8Recipe recipe :
           {config::Fp8Recipe::tensorwise, config::Fp8Recipe::rowwise, config::Fp8Recipe::blockwise,
            config::Fp8Recipe::mxfp8, config::Fp8Recipe::delayed}) {
        config::Config both = bf16;
        both.precision.fp8 = config::Fp8Mode::hybrid;
        both.precision.fp8_recipe = recipe;
        both.precision.fp8_from_step = 3;
        EXPECT_EQ(operations_of_a_step(both), expected) << static_cast<int>(recipe);
      }
    }
  }
}

// Their amaxes are recorded only in passes that count.
TEST(StepRunner, AmaxesOfExpertsAreUnknownUntilTheyAreRecorded) {
  config::Config config = fp8_config(config::Fp8Recipe::blockwise, config::Recompute::none);
  config::ModelConfig& m = config.model;
  m.hidden_size = 128, m.num_attention_heads = 4, m.kv_channels = 32, m.ffn_hidden_size = 128;
  m.num_query_groups = 4, m.num_moe_experts = 2, m.moe_router_topk = 2, m.moe_ffn_hidden_size = 128;
  const Context context = Context::cpu();
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.model().initialize(context, 1);
  runner.model().quantize_weights(context);
  runner.launch(random_batch(runner, config), 1, 0, false);
  int unknown = 0;
  for (const train::Fp8Health& item : train::read_fp8_health(context, runner.model().recipe().table())) {
    if (item.role != OperandRole::weight) continue;
    unknown += std::isnan(item.amax) ? 1 : 0;
    EXPECT_NE(item.amax, 0.0) << item.name;
  }
  EXPECT_EQ(unknown, 2 * 2 * config.model.num_layers);
}

// However far a step moves the weights, they are quantized with current scaling.
TEST(StepRunner, WeightsDoNotOverflowTheirScale) {
  config::Config config = fp8_config(config::Fp8Recipe::delayed, config::Recompute::none);
  config.optimizer.lr = 1.0;  // one step of 1.0 on weights whose amax is below that
  const Context context = Context::cpu();
  train::StepRunner runner(config, context);
  runner.allocate();
  runner.model().initialize(context, 1);
  runner.model().quantize_weights(context);
  runner.launch(random_batch(runner, config), 1, 0, true);
  int weights = 0;
  for (const train::Fp8Health& item : train::read_fp8_health(context, runner.model().recipe().table())) {
    if (item.role != OperandRole::weight) continue;
    ++weights;
    EXPECT_EQ(item.saturated, 0.0) << item.name;
    EXPECT_GT(item.amax, 0.5) << item.name;
  }
  EXPECT_GT(weights, 0);
}

}  // namespace
}  // namespace te
