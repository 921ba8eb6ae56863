// The norm whose backward pass produces the dy of linear_proj or linear_fc2 also sums the bias gradient and, with
// delayed scaling, casts dy: the same bits on the CPU as from passes of their own, which is what a dropout in between
// needs.
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

std::vector<Config> streamed_configs() {
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

/// A probability that drops nothing and scales by one: only the way of the gradients differs.
constexpr double kNothing = 1e-12;

struct Result {
  std::vector<float> gradients, amax, scales;
};
Result run(Config config, double dropout, Recompute recompute) {
  config.model.hidden_dropout = config.model.embedding_dropout = dropout;
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

TEST(StreamGradient, OfTheNormsEqualsThatOfPassesOfItsOwn) {
  for (const Config& config : streamed_configs()) {
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(std::string(to_string(config.precision.dtype)) + " " +
                   std::string(to_string(config.precision.fp8)) + " " +
                   std::string(to_string(config.precision.fp8_recipe)) + " " +
                   std::string(to_string(recompute)));
      const Result fused = run(config, 0.0, recompute), separate = run(config, kNothing, recompute);
      EXPECT_EQ(fused.gradients, separate.gradients);
      EXPECT_EQ(fused.amax, separate.amax);
      EXPECT_EQ(fused.scales, separate.scales);
    }
  }
}

TEST(StreamGradient, OnlyWhatNoNormProducesHasAPassOfItsOwn) {
  const auto calls = [](const char* op, Fp8Mode fp8, double dropout) {
    Config config = tiny_config(Family::gpt);
    config.precision.dtype = config::ComputeDType::bf16;
    config.precision.fp8 = fp8;
    config.model.hidden_dropout = config.model.embedding_dropout = dropout;
    TinyModel tiny(config);
    CountCalls counter(op);
    tiny.forward_backward();
    return counter.count;
  };
  // Of two layers: linear_qkv's; behind a dropout linear_proj's and linear_fc2's, too.
  EXPECT_EQ(calls("bias_gradient", Fp8Mode::off, 0.0), 2);
  EXPECT_EQ(calls("bias_gradient", Fp8Mode::off, kNothing), 6);
  // Casts: attention's output in either pass and linear_qkv's dy, and the same two.
  EXPECT_EQ(calls("quantize", Fp8Mode::hybrid, 0.0), 6);
  EXPECT_EQ(calls("quantize", Fp8Mode::hybrid, kNothing), 10);
}

}  // namespace
}  // namespace te
