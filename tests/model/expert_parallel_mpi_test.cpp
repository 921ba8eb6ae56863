// Expert parallelism uses scratch memory only in its lifetime (TinyModel overwrites it outside), and recomputation
// changes no bit of the gradients, also of rows that arrive in several rounds.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "core/float_types.h"
#include "core/profile.h"
#include "model/tiny_model.h"
#include "parallel/groups.h"
#include "testing/mpi.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

using config::Fp8KeptWeights;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::Recompute;

int64_t different(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
  return count;
}

config::Config experts_config(Fp8Mode mode, Fp8Recipe recipe, double factor) {
  config::Config config = tiny_config(config::Family::llama);
  set_fp8_experts(config.model);
  config.model.num_moe_experts = 6;
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = mode;
  config.precision.fp8_recipe = recipe;
  config.precision.amax_history_len = 4;
  config.parallel.expert = 2;
  config.parallel.moe_dispatch_factor = factor;
  return config;
}

TEST(ExpertParallelModel, RecomputationChangesNoBit) {
  if (world().size() != 2) GTEST_SKIP() << "two ranks divide six experts";
  const parallel::Groups groups =
      parallel::Groups::connect(world(), Context::cpu(), parallel::ProcessGrid::of(2, 1, 1, 1, 2));
  for (const auto& [mode, recipe] : {std::pair{Fp8Mode::off, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::delayed},
                                     {Fp8Mode::hybrid, Fp8Recipe::tensorwise},
                                     {Fp8Mode::hybrid, Fp8Recipe::blockwise}}) {
    for (const double factor : {2.0, 0.4}) {
      SCOPED_TRACE(fmt::format("{} {}, factor {}", to_string(mode), to_string(recipe), factor));
      config::Config config = experts_config(mode, recipe, factor);
      const auto gradients = [&] {
        TinyModel tiny(config, groups);
        tiny.set_batch(static_cast<uint64_t>(world().rank()) + 1);
        tiny.forward_backward();
        tiny.add_microbatch();
        EXPECT_EQ(*tiny.model().routing().rounds, 0);  // the first layer has no experts
        EXPECT_GE(tiny.model().routing().rounds[1], factor < 1 ? 4 : 2);
        return tiny.read(tiny.model().parameters().grads);
      };
      const std::vector<float> kept = gradients();
      for (const float gradient : kept) ASSERT_TRUE(std::isfinite(gradient));
      for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
        config.training.recompute = recompute;
        EXPECT_EQ(different(kept, gradients()), 0) << to_string(recompute);
      }
      if (mode == Fp8Mode::off) continue;
      config.precision.fp8_keep_weights = Fp8KeptWeights::none;
      EXPECT_EQ(different(kept, gradients()), 0);
    }
  }
}

/// Lets all tokens select experts of the first of two ranks.
void select_first_rank(TinyModel& tiny) {
  const parameters::ParameterStore& store = tiny.model().parameters();
  for (const parameters::Parameter& parameter : store.parameters()) {
    if (!parameter.name.ends_with("router.bias")) continue;
    std::vector<float> bias(static_cast<size_t>(parameter.shape.numel()), 0.0f);
    std::fill_n(bias.begin(), bias.size() / 2, 2.0f);  // scores are at most 1
    std::vector<bfloat16> rounded;
    for (const float value : bias) rounded.push_back(to_bf16(value));
    for (const parameters::ParameterStore::ShardRange& range : store.shard_ranges(parameter))
      tiny.write(store.main_of(parameter, range).fp32,
                 {bias.begin() + range.local, bias.begin() + range.local + range.count});
    const bool bf16 = parameter.value.dtype == DType::bf16;
    tiny.context().copy_to_device(parameter.value,
                                  bf16 ? static_cast<const void*>(rounded.data()) : bias.data());
    tiny.context().synchronize();
  }
}

// Its experts have neither amaxes nor gradients, in one round or several.
TEST(ExpertParallelModel, ARankWithoutRowsChangesNothingInFp8) {
  if (world().size() != 2) GTEST_SKIP() << "two ranks divide six experts";
  const parallel::Groups groups =
      parallel::Groups::connect(world(), Context::cpu(), parallel::ProcessGrid::of(2, 1, 1, 1, 2));
  for (const auto dtype : {config::ComputeDType::bf16, config::ComputeDType::fp32})
    for (const auto recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise})
      for (const double factor : {2.0, 0.4}) {
        SCOPED_TRACE(fmt::format("{} {}, factor {}", to_string(dtype), to_string(recipe), factor));
        config::Config config = experts_config(Fp8Mode::hybrid, recipe, factor);
        config.precision.dtype = dtype;
        config.model.moe_router_enable_expert_bias = true;
        TinyModel tiny(config, groups);
        config.parallel.expert = 1, config.parallel.moe_dispatch_factor = 2.0;
        TinyModel alone(config);
        for (TinyModel* const model : {&tiny, &alone}) {
          select_first_rank(*model);
          set_scales_to_one(model->context(), model->model().recipe());
          model->set_batch(static_cast<uint64_t>(world().rank()) + 1);
        }
        const double loss = alone.evaluate();
        EXPECT_NEAR(tiny.evaluate(), loss, (dtype == config::ComputeDType::fp32 ? 1e-5 : 2e-3) * loss);
        for (int step = 0; step < 2; ++step) {
          tiny.model().reset_routing(tiny.context());
          tiny.forward_backward();
          EXPECT_EQ(tiny.model().routing().rounds[1], factor < 1 ? 5 : 1);
          for (const char* name :
               {"layers.1.mlp.experts.linear_fc1.weight", "layers.1.mlp.experts.linear_fc2.weight"}) {
            const std::vector<float> gradients = tiny.read(tiny.parameter(name).grad);
            const bool zeros = std::count(gradients.begin(), gradients.end(), 0.0f) == std::ssize(gradients);
            EXPECT_EQ(zeros, world().rank() == 1) << name;
          }
          for (const float gradient : tiny.read(tiny.model().parameters().grads))
            ASSERT_TRUE(std::isfinite(gradient));
          tiny.optimizer().step(tiny.context(), 1e-3f);
          tiny.model().recipe().update(tiny.context(), tiny.optimizer().skip_flag());
          tiny.model().quantize_weights(tiny.context());
          tiny.optimizer().finish_step(false);
        }
        const fp8::ScaleTable& table = tiny.model().recipe().table();
        if (table.size() == 0) continue;
        for (const float scale : tiny.read(table.scale))
          EXPECT_TRUE(std::isfinite(scale) && scale > 0) << scale;
      }
}

/// Counts the bytes of rows that are sent to experts and back.
class ExpertMessages final : public OpObserver {
 public:
  ExpertMessages() { install(this); }
  ~ExpertMessages() override { install(nullptr); }
  void begin(const Context& /*context*/, OpCall call) override {
    if (call.group.starts_with("expert") && std::string_view(call.name) == "all_to_all")
      bytes_ += static_cast<int64_t>(call.cost.bytes);
  }
  void end(const Context& /*context*/) override {}
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

/// What two steps of two microbatches compute, and the FP8 state after them.
struct Steps {
  std::vector<double> losses;
  std::vector<float> gradients;
  std::vector<uint8_t> state;
  kernels::Fp8Counters counters{};  ///< of the operands that are sent
  int64_t requantized = 0;          ///< the same
  int64_t sent = 0;                 ///< bytes
};

/// `both`: memory is planned for both precisions, so all rows are sent in BF16.
Steps steps_of(const config::Config& config, const parallel::Groups& groups, bool both) {
  auto recipe = fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers));
  if (both) recipe->keep_high_precision();
  TinyModel tiny(config, std::move(recipe), Context::cpu(), model::make_feed_forward, groups);
  const fp8::ScaleTable& table = tiny.model().recipe().table();
  const ExpertMessages messages;
  Steps steps;
  const auto add_state = [&](const Tensor& tensor) {
    const auto* const bytes = tensor.as<uint8_t>();
    if (tensor) steps.state.insert(steps.state.end(), bytes, bytes + tensor.bytes());
  };
  std::vector<float> scales;  // inputs and gradients of some experts overflow them
  for (int i = 0; i < table.size(); ++i)
    scales.push_back(i % 2 == 0                                            ? 1.0f
                     : table.info(i).role == fp8::OperandRole::grad_output ? 0x1p30f
                                                                           : 0x1p10f);
  tiny.write(table.scale, scales);
  for (const float lr : {1.0f, 1e-3f}) {
    tiny.set_batch(static_cast<uint64_t>(world().rank()) + 1);
    tiny.forward_backward({.count_fp8 = true});
    tiny.set_batch(static_cast<uint64_t>(world().rank()) + 11);
    steps.losses.push_back(tiny.add_microbatch({.count_fp8 = true}));
    steps.losses.push_back(tiny.evaluate());
    const std::vector<float> gradients = tiny.read(tiny.model().parameters().grads);
    steps.gradients.insert(steps.gradients.end(), gradients.begin(), gradients.end());
    tiny.optimizer().step(tiny.context(), lr);
    tiny.model().recipe().update(tiny.context(), tiny.optimizer().skip_flag());
    tiny.model().quantize_weights(tiny.context());
    tiny.optimizer().finish_step(false);
    for (const Tensor& tensor : {Tensor(table.last_amax), Tensor(table.scale), Tensor(table.history),
                                 Tensor(table.counters), Tensor(table.predicted_scales)})
      add_state(tensor);
    for (int i = 0; i < table.size(); ++i) {
      const kernels::Fp8Counters& counters = *table.counters_of(i);
      const kernels::Fp8TensorState& state = *table.tensor_state_of(i);
      const fp8::OperandInfo& info = table.info(i);
      const auto sent =
          info.linear.kind == LinearKind::fc1 ? fp8::OperandRole::input : fp8::OperandRole::grad_output;
      if (info.group == GradientGroup::expert && info.role == sent) {
        steps.counters.saturated += counters.saturated, steps.counters.flushed += counters.flushed;
        steps.requantized += state.requantized;
      }
      for (const unsigned long long count :
           {static_cast<unsigned long long>(state.requantized), state.quantized, state.counted_requantized})
        steps.state.push_back(static_cast<uint8_t>(count));
    }
  }
  steps.sent = messages.bytes();
  return steps;
}

TEST(ExpertParallelModel, SendingFp8ChangesNoBit) {
  if (world().size() != 2) GTEST_SKIP() << "two ranks divide six experts";
  const parallel::Groups groups =
      parallel::Groups::connect(world(), Context::cpu(), parallel::ProcessGrid::of(2, 1, 1, 1, 2));
  struct Case {
    const char* name;
    std::function<void(config::Config&)> set;
    double sent = 0.75;  ///< at most, next to BF16, in several rounds: results and dx return in BF16
  };
  const Case cases[] = {
      {"delayed", [](config::Config&) {}},
      {"delayed without requantization", [](config::Config& c) { c.precision.fp8_recast = false; }},
      {"E4M3", [](config::Config& c) { c.precision.fp8 = Fp8Mode::e4m3; }},
      {"tensorwise", [](config::Config& c) { c.precision.fp8_recipe = Fp8Recipe::tensorwise; }},
      {"tensorwise with FP32 scales",
       [](config::Config& c) {
         c.precision.fp8_recipe = Fp8Recipe::tensorwise;
         c.precision.fp8_scale_format = config::Fp8ScaleFormat::fp32;
       }},
      {"inputs of fc1 in BF16", [](config::Config& c) { c.precision.overrides = "linear_fc1 input: bf16"; },
       0.92},
      {"wgrad of fc2 in BF16", [](config::Config& c) { c.precision.overrides = "linear_fc2 wgrad: bf16"; },
       0.85},
      {"selective", [](config::Config& c) { c.training.recompute = Recompute::selective; }},
      {"full", [](config::Config& c) { c.training.recompute = Recompute::full; }},
      {"norms after sublayers",
       [](config::Config& c) { c.model.norm_placement = config::NormPlacement::both; }},
      {"one expert of each token", [](config::Config& c) { c.model.moe_router_topk = 1; }},
      {"capacity", [](config::Config& c) { c.model.moe_expert_capacity_factor = 0.7; }},
      {"tokens in BF16", [](config::Config& c) { c.model.moe_router_topk = 4; }},
      {"tokens in BF16, FP8 gradients only",
       [](config::Config& c) {
         c.model.moe_router_topk = 5;
         c.precision.overrides = "linear_fc1 input: bf16";
       },
       0.92},
      {"tokens in BF16, FP8 inputs only",
       [](config::Config& c) {
         c.model.moe_router_topk = 6;
         c.precision.overrides = "linear_fc2 wgrad: bf16";
       },
       0.85},
      {"tokens in BF16, tensorwise, full",
       [](config::Config& c) {
         c.model.moe_router_topk = 4;
         c.precision.fp8_recipe = Fp8Recipe::tensorwise;
         c.training.recompute = Recompute::full;
       }},
  };
  for (const Case& c : cases)
    for (const double factor : {2.0, 0.4}) {
      SCOPED_TRACE(fmt::format("{}, factor {}", c.name, factor));
      config::Config config = experts_config(Fp8Mode::hybrid, Fp8Recipe::delayed, factor);
      c.set(config);
      const Steps fp8 = steps_of(config, groups, false), bf16 = steps_of(config, groups, true);
      EXPECT_EQ(fp8.losses, bf16.losses);
      EXPECT_EQ(different(fp8.gradients, bf16.gradients), 0);
      EXPECT_TRUE(fp8.state == bf16.state);
      if (config.model.moe_router_topk >= 4 && factor > 1) {
        EXPECT_EQ(fp8.sent, bf16.sent);
      } else {  // in a single round, BF16 has a row per token instead of one per selection
        const double sent = factor > 1 ? (1.0 + c.sent) / 2 : c.sent;
        EXPECT_LT(static_cast<double>(fp8.sent), sent * static_cast<double>(bf16.sent));
      }
      EXPECT_GT(fp8.counters.flushed, 0u);
      const bool recast = config.precision.fp8_recast;
      EXPECT_EQ(fp8.counters.saturated > 0, !recast);
      if (recast && config.precision.fp8_recipe == Fp8Recipe::delayed) {
        EXPECT_GT(fp8.requantized, 0);
      }
    }
}

}  // namespace
}  // namespace te::testing
