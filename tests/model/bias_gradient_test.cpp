// The bias gradients of linear_proj and linear_fc2 are summed by the norm whose backward pass produces their dy: the same
// bits on the CPU as from a pass of their own, which is what a dropout in between needs.
#include "core/profile.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::Recompute;
using testing::tiny_config;
using testing::TinyModel;

/// Counts the passes over memory that only sum columns.
class CountSums final : public OpObserver {
 public:
  CountSums() { install(this); }
  ~CountSums() override { install(nullptr); }
  void begin(const Context&, OpCall call) override {
    if (std::string(call.name) == "bias_gradient") ++count;
  }
  void end(const Context&) override {}
  int count = 0;
};

std::vector<Config> all_precisions() {
  std::vector<Config> configs;
  const auto add = [&](auto&& change) {
    Config config = tiny_config(Family::gpt);
    config.model.num_layers = 3;
    config.precision.amax_history_len = 4;
    change(config);
    configs.push_back(config);
  };
  const auto bf16 = [](Config& config) { config.precision.dtype = config::ComputeDType::bf16; };
  const auto fp8 = [&](Config& config) { bf16(config), config.precision.fp8 = Fp8Mode::hybrid; };
  add([](Config&) {});
  add(bf16);
  add([&](Config& config) {
    bf16(config);
    config.precision.fp8_calibrate = true;
  });
  add(fp8);
  add([&](Config& config) {
    fp8(config);
    config.precision.fp8_recipe = Fp8Recipe::tensorwise;
  });
  add([&](Config& config) {
    fp8(config);
    config.precision.first_layers_bf16 = config.precision.last_layers_bf16 = 1;
  });
  return configs;
}

/// A probability that drops nothing and scales by one: only the way of the gradients differs.
constexpr double kNothing = 1e-12;

struct Result {
  std::vector<float> gradients, amax;
};
Result run(Config config, double dropout, Recompute recompute) {
  config.model.hidden_dropout = dropout;
  config.training.recompute = recompute;
  TinyModel tiny(config);
  for (int step = 0; step < 2; ++step) {
    tiny.set_batch(10 + step);
    tiny.train_step(1e-2f);
  }
  tiny.forward_backward();
  Result result{tiny.read(tiny.model().parameters().grads), {}};
  const fp8::ScaleTable& table = tiny.model().recipe().table();
  if (table.size() > 0) result.amax = tiny.read(table.amax);
  return result;
}

TEST(BiasGradient, OfTheNormsEqualsThatOfAPassOfItsOwn) {
  for (const Config& config : all_precisions()) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(std::string(to_string(config.precision.dtype)) + " " +
                   std::string(to_string(config.precision.fp8)) + " " +
                   std::string(to_string(config.precision.fp8_recipe)) + " " +
                   std::string(to_string(recompute)));
      const Result fused = run(config, 0.0, recompute), separate = run(config, kNothing, recompute);
      EXPECT_EQ(fused.gradients, separate.gradients);
      EXPECT_EQ(fused.amax, separate.amax);
    }
  }
}

TEST(BiasGradient, OnlyWhatNoNormProducesHasAPassOfItsOwn) {
  const auto passes = [](double dropout) {
    Config config = tiny_config(Family::gpt);
    config.model.hidden_dropout = dropout;
    TinyModel tiny(config);
    CountSums sums;
    tiny.forward_backward();
    return sums.count;
  };
  EXPECT_EQ(passes(0.0), 2);       // linear_qkv of two layers
  EXPECT_EQ(passes(kNothing), 6);  // and linear_proj and linear_fc2, behind a dropout
}

}  // namespace
}  // namespace te
