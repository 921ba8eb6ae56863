// The backward pass of the norm that produces the grad_output of linear_proj or linear_fc2 also sums the bias gradient
// and, with delayed scaling, quantizes grad_output. On the CPU this gives the same bits as separate passes, which run
// if there is dropout in between.
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

/// Counts the calls of an op.
class CountCalls final : public OpObserver {
 public:
  explicit CountCalls(std::string op) : op_(std::move(op)) { install(this); }
  ~CountCalls() override { install(nullptr); }
  void begin(const Context&, OpCall call) override { count += call.name == op_ ? 1 : 0; }
  void end(const Context&) override {}
  int count = 0;

 private:
  std::string op_;
};

std::vector<Config> fused_configs() {
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
    config.precision.fp8_recipe = Fp8Recipe::blockwise;
  });
  add([&](Config& config) {
    fp8(config);
    config.precision.first_layers_bf16 = config.precision.last_layers_bf16 = 1;
  });
  return configs;
}

/// A dropout probability that drops nothing and scales by one, but prevents the fusion.
constexpr double kNoDropout = 1e-12;

struct Result {
  std::vector<float> gradients, amax, scales;
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
  Result result{tiny.read(tiny.model().parameters().grads), {}, {}};
  const fp8::ScaleTable& table = tiny.model().recipe().table();
  if (table.size() > 0) result.amax = tiny.read(table.amax), result.scales = tiny.read(table.scale);
  return result;
}

TEST(ResidualGradient, FusedAndSeparatePassesGiveTheSameBits) {
  for (const Config& config : fused_configs()) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(std::string(to_string(config.precision.dtype)) + " " +
                   std::string(to_string(config.precision.fp8)) + " " +
                   std::string(to_string(config.precision.fp8_recipe)) + " " +
                   std::string(to_string(recompute)));
      const Result fused = run(config, 0.0, recompute), separate = run(config, kNoDropout, recompute);
      EXPECT_EQ(fused.gradients, separate.gradients);
      EXPECT_EQ(fused.amax, separate.amax);
      EXPECT_EQ(fused.scales, separate.scales);
    }
  }
}

TEST(ResidualGradient, NumberOfSeparatePasses) {
  const auto calls = [](const char* op, Fp8Mode fp8, double dropout) {
    Config config = tiny_config(Family::gpt);
    config.precision.dtype = config::ComputeDType::bf16;
    config.precision.fp8 = fp8;
    config.model.hidden_dropout = dropout;
    TinyModel tiny(config);
    CountCalls counter(op);
    tiny.forward_backward();
    return counter.count;
  };
  // In two layers: linear_qkv's; with dropout also those of linear_proj and linear_fc2.
  EXPECT_EQ(calls("bias_gradient", Fp8Mode::off, 0.0), 2);
  EXPECT_EQ(calls("bias_gradient", Fp8Mode::off, kNoDropout), 6);
  // Attention's output in forward and backward pass and linear_qkv's grad_output; with dropout also the same two.
  EXPECT_EQ(calls("quantize", Fp8Mode::hybrid, 0.0), 6);
  EXPECT_EQ(calls("quantize", Fp8Mode::hybrid, kNoDropout), 10);
}

}  // namespace
}  // namespace te
