// Mixtures of experts in a model: one expert equals the MLP, losses of the router, accumulation, idle experts.
#include <cmath>

#include "kernels/moe/router.h"
#include "model/fp8_gradients.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using testing::relative_error;
using testing::tiny_config;
using testing::TinyModel;

Config experts_config() {
  Config config = tiny_config(Family::llama);
  testing::set_experts(config.model);
  return config;
}

void copy_parameters(TinyModel& from, TinyModel& to, const std::string& theirs, const std::string& ours) {
  for (const parameters::Parameter& parameter : to.model().parameters().parameters()) {
    std::string name = parameter.name;
    if (name.ends_with("router.weight")) continue;
    if (const size_t at = name.find(ours); at != std::string::npos) name.replace(at, ours.size(), theirs);
    to.write(parameter.main, from.read(from.parameter(name).main));
  }
}

TEST(MoeModel, OneExpertEqualsTheMlp) {
  const Config dense = tiny_config(Family::llama);
  Config one = dense;
  one.model.num_moe_experts = one.model.moe_router_topk = 1;
  one.model.moe_ffn_hidden_size = one.model.ffn_hidden_size;
  TinyModel a(dense), b(one);
  copy_parameters(a, b, "mlp.linear", "mlp.experts.linear");
  EXPECT_NEAR(a.forward_backward(), b.forward_backward(), 1e-6);
  for (const char* name : {"layers.0.mlp.linear_fc1.weight", "layers.1.mlp.linear_fc2.weight",
                           "layers.0.self_attention.linear_qkv.weight"}) {
    std::string ours = name;
    if (const size_t at = ours.find("linear_fc"); at != std::string::npos) ours.insert(at, "experts.");
    EXPECT_LT(relative_error(b.read(b.parameter(ours).grad), a.read(a.parameter(name).grad)), 1e-5) << name;
  }
}

TEST(MoeModel, GradientsInFp8AreNearBf16) {
  Config config = tiny_config(Family::llama);
  testing::set_fp8_experts(config.model);
  config.model.seq_length = config.model.max_position_embeddings = 128;
  config.model.init_method_std = 0.05;
  config.precision.dtype = config::ComputeDType::bf16;
  testing::check_fp8_gradients_of_experts(config, [] { return Context::cpu(); });
}

// The gradients of balance and z-loss, by finite differences of the losses in the statistics. Selections do not change
// in steps as small as these.
TEST(MoeModel, LossesOfTheRouterHaveTheirGradients) {
  for (const auto type :
       {config::BalanceScope::microbatch, config::BalanceScope::sequence, config::BalanceScope::global}) {
    Config config = experts_config();
    config.model.moe_router_load_balancing_type = type;
    config.model.moe_aux_loss_coeff = 3.0;
    config.model.moe_z_loss_coeff = 0.5;
    TinyModel tiny(config);
    const auto losses = [&] {
      tiny.model().reset_routing(tiny.context());
      tiny.forward_backward();
      const std::vector<float> sums = tiny.read(tiny.model().routing().sums);
      double sum = 0.0;
      for (size_t layer = 0; layer < 2; ++layer)
        sum += 3.0 * static_cast<double>(sums[layer * kernels::kRouterSums]) +
               0.5 * static_cast<double>(sums[layer * kernels::kRouterSums + 1]);
      return sum;
    };
    const parameters::Parameter& router = tiny.parameter("layers.1.mlp.router.weight");
    tiny.model().reset_routing(tiny.context());
    tiny.forward_backward();
    const std::vector<float> without = tiny.read(router.grad);
    tiny.model().reset_routing(tiny.context());
    tiny.forward_backward({.auxiliary_scale = 1.0f});
    std::vector<float> grad = tiny.read(router.grad);
    double norm = 0.0;
    for (size_t i = 0; i < grad.size(); ++i) {
      grad[i] -= without[i];
      norm += static_cast<double>(grad[i]) * static_cast<double>(grad[i]);
    }
    norm = std::sqrt(norm);
    EXPECT_GT(norm, 0.1);
    const std::vector<float> original = tiny.read(router.main);
    const auto loss_at = [&](double t) {
      std::vector<float> moved = original;
      for (size_t i = 0; i < moved.size(); ++i)
        moved[i] += static_cast<float>(t * static_cast<double>(grad[i]) / norm);
      tiny.write(router.main, moved);
      return losses();
    };
    constexpr double kStep = 2e-3;
    EXPECT_NEAR((loss_at(kStep) - loss_at(-kStep)) / (2.0 * kStep), norm, 0.02 * norm) << to_string(type);
  }
}

TEST(MoeModel, MicrobatchesAccumulate) {
  TinyModel tiny(experts_config());
  tiny.forward_backward();
  const std::vector<float> once = tiny.read(tiny.model().parameters().grads);
  tiny.add_microbatch();
  const std::vector<float> twice = tiny.read(tiny.model().parameters().grads);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < once.size(); ++i) {
    difference += std::pow(static_cast<double>(twice[i]) - 2.0 * static_cast<double>(once[i]), 2.0);
    norm += std::pow(static_cast<double>(once[i]), 2.0);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-6);
}

TEST(MoeModel, ExpertsWithoutTokensHaveNoGradient) {
  Config config = experts_config();
  config.model.num_moe_experts = 64;
  config.model.moe_router_topk = 1;
  TinyModel tiny(config);
  tiny.model().reset_routing(tiny.context());
  tiny.forward_backward();
  const Tensor counts = tiny.model().routing().counts;
  std::vector<int32_t> tokens(static_cast<size_t>(counts.numel()));
  tiny.context().copy_to_host(tokens.data(), counts);
  const std::vector<float> grad = tiny.read(tiny.parameter("layers.1.mlp.experts.linear_fc2.weight").grad);
  const size_t elements = grad.size() / 64;
  int64_t empty = 0, total = 0;
  for (size_t e = 0; e < 64; ++e) {
    const int32_t count = tokens[64 + e];
    total += count, empty += count == 0;
    double norm = 0.0;
    for (size_t i = 0; i < elements; ++i) norm += std::abs(static_cast<double>(grad[e * elements + i]));
    EXPECT_EQ(norm > 0.0, count > 0) << e;
  }
  EXPECT_EQ(total, tiny.tokens().numel());
  EXPECT_GE(empty, 32);
  for (size_t e = 0; e < 64; ++e) EXPECT_EQ(tokens[e], 0);  // layer 0 has no experts
}

TEST(MoeModel, EvaluationDoesNotCountSelections) {
  TinyModel tiny(experts_config());
  tiny.model().reset_routing(tiny.context());
  tiny.evaluate();
  for (const float sum : tiny.read(tiny.model().routing().sums)) EXPECT_EQ(sum, 0.0f);
}

TEST(MoeModel, InitialWeightsOfAnExpertDependOnItsRowsOnly) {
  Config config = experts_config(), fewer = config;
  fewer.model.num_moe_experts = 3;
  TinyModel a(config), b(fewer);
  const std::vector<float> more = a.read(a.parameter("layers.1.mlp.experts.linear_fc1.weight").main),
                           less = b.read(b.parameter("layers.1.mlp.experts.linear_fc1.weight").main);
  EXPECT_TRUE(std::equal(less.begin(), less.end(), more.begin()));
}

}  // namespace
}  // namespace te
