// Compares the gradients of complete models with finite differences, in FP32 on the CPU: every parameter of GPT and
// Llama, along the gradient and random directions. A wrong sign, a missing term or a wrong factor in any backward pass
// fails here.
#include <cmath>

#include "model/mixed_feed_forward.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using testing::set_gemma3;
using testing::tiny_config;
using testing::TinyModel;

/// Changes a parameter and what is computed from it.
void set_value(TinyModel& tiny, const parameters::Parameter& parameter, const std::vector<float>& values) {
  tiny.write(parameter.main, values);
  tiny.model().quantize_weights(tiny.context());
}

// Central difference of the loss along `direction` of one parameter. FP32 losses carry about 1e-7 of noise,
// so steps are large and the third-order error is removed by Richardson extrapolation.
double directional_difference(TinyModel& tiny, const parameters::Parameter& parameter,
                              const std::vector<float>& direction, double step, bool training) {
  const std::vector<float> original = tiny.read(parameter.main);
  const auto loss_at = [&](double t) {
    std::vector<float> moved = original;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>(t * direction[i]);
    set_value(tiny, parameter, moved);
    const double loss = training ? tiny.forward_backward() : tiny.objective();
    set_value(tiny, parameter, original);
    return loss;
  };
  const double coarse = (loss_at(step) - loss_at(-step)) / (2 * step);
  const double fine = (loss_at(step / 2) - loss_at(-step / 2)) / step;
  return (4 * fine - coarse) / 3;
}

/// `bound`: of the error relative to the gradient's norm.
void check_gradients(const Config& config, double step = 0.04, double bound = 2e-3,
                     const model::FeedForwardFactory& make_feed_forward = model::make_feed_forward) {
  TinyModel tiny(config, nullptr, Context::cpu(), make_feed_forward);
  // Gains and biases are moved away from their initial values 1 and 0, which would hide errors in their use.
  uint64_t seed = 100;
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    ++seed;
    if (parameter.init == parameters::Init::normal) continue;
    std::vector<float> values = testing::normal_values(parameter.shape.numel(), seed, 0.2f);
    for (float& value : values) value += parameter.init == parameters::Init::ones ? 1.0f : 0.0f;
    set_value(tiny, parameter, values);
  }
  tiny.forward_backward();
  const bool training = config.adapter.dropout > 0;  // evaluation has no dropout
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    if (!parameter.trainable) continue;
    if (training) tiny.forward_backward();
    const std::vector<float> gradient = tiny.read(parameter.grad);
    double norm = 0;
    for (float g : gradient) norm += double(g) * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-6) << parameter.name << " has no gradient";
    // Along the gradient itself the derivative is its norm; random directions catch errors orthogonal to it.
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<float> direction =
          trial == 0 ? gradient : testing::normal_values(parameter.shape.numel(), 7 + trial);
      double length = 0, expected = 0;
      for (float d : direction) length += double(d) * d;
      length = std::sqrt(length);
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = static_cast<float>(direction[i] / length);
        expected += double(direction[i]) * gradient[i];
      }
      const double measured = directional_difference(tiny, parameter, direction, step, training);
      EXPECT_NEAR(measured, expected, bound * norm + 0.01 * bound) << parameter.name << " trial " << trial;
    }
  }
}

TEST(ModelGradient, LayersWithDifferentFeedForwards) {
  check_gradients(testing::mixed_config(Family::llama), 0.04, 2e-3, model::mixed_feed_forward);
}

// Each recompute mode gives other tensors other lifetimes.
TEST(ModelGradient, LayersWithDifferentFeedForwardsRecompute) {
  Config config = testing::mixed_config(Family::gpt);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = config::Fp8Mode::hybrid;
  std::vector<float> expected;
  for (const auto recompute :
       {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
    config.training.recompute = recompute;
    TinyModel tiny(config, nullptr, Context::cpu(), model::mixed_feed_forward);
    for (int step = 0; step < 2; ++step) tiny.train_step(1e-3f);
    tiny.forward_backward();
    const std::vector<float> gradients = tiny.read(tiny.model().parameters().grads);
    if (expected.empty()) expected = gradients;
    EXPECT_EQ(std::memcmp(gradients.data(), expected.data(), gradients.size() * sizeof(float)), 0);
  }
}

TEST(ModelGradient, Gpt) {
  check_gradients(tiny_config(Family::gpt));
}

TEST(ModelGradient, LlamaWithGroupedQueries) {
  check_gradients(tiny_config(Family::llama));
}

TEST(ModelGradient, LlamaTiedWithQkvBias) {
  Config config = tiny_config(Family::llama);
  config.model.tie_word_embeddings = true;
  config.model.add_qkv_bias = true;
  check_gradients(config);
}

TEST(ModelGradient, BiasesOfAttentionAndMlp) {
  Config config = tiny_config(Family::llama);
  config.model.add_qkv_bias = config.model.add_proj_bias = config.model.add_mlp_bias = true;
  check_gradients(config);
}

// The clamp applies to many of the values. Some of them cross it during a step, so steps are short and the bound is
// wide.
TEST(ModelGradient, ClampedSwiglu) {
  Config config = tiny_config(Family::llama);
  config.model.swiglu_clamp = 0.7;
  config.model.add_mlp_bias = true;
  check_gradients(config, 0.01, 1e-2);
}

// Qwen3: heads that do not make up the hidden size, with a norm per head.
TEST(ModelGradient, NormOfEachHead) {
  Config config = tiny_config(Family::llama);
  config.model.kv_channels = 12;
  config.model.qk_norm = config::QkNorm::head;
  check_gradients(config);
}

TEST(ModelGradient, NanoChat) {
  Config config = tiny_config(Family::llama);
  testing::set_nanochat(config.model);
  check_gradients(config);
}

TEST(ModelGradient, SquaredReluAndCappedLogits) {
  Config config = tiny_config(Family::gpt);
  config.model.activation = config::ActivationKind::relu2;
  config.model.final_logit_softcapping = 1.5;
  check_gradients(config);
}

TEST(ModelGradient, NormsOnOutputsAndOfProjections) {
  Config config = tiny_config(Family::llama);
  config.model.qk_norm = config::QkNorm::projection;
  config.model.norm_placement = config::NormPlacement::post;
  check_gradients(config);
}

TEST(ModelGradient, ParallelResidualWithPartialRotation) {
  Config config = tiny_config(Family::gpt);
  config.model.position_embedding = config::PositionEmbedding::rope;
  config.model.rotary_percent = 0.5;
  config.model.parallel_residual = true;
  config.model.activation = config::ActivationKind::gelu_exact;
  check_gradients(config);
}

// Steps are short because the loss is far from linear in the product of A and B.
TEST(ModelGradient, AdaptersOfAllLinears) {
  for (const Family family : {Family::llama, Family::gpt}) {
    Config config = testing::adapter_config(family);
    config.adapter.alpha = 6;
    check_gradients(config, 0.01);
  }
}

TEST(ModelGradient, AdaptersOfSomeMatricesWithNormsAndEmbeddings) {
  Config config = testing::adapter_config(Family::llama);
  config.adapter.alpha = 3;
  config.adapter.target = {"q", "v_proj", "up", "down"};
  config.adapter.use_rslora = true;
  config.adapter.train_norms = config.adapter.train_embeddings = true;
  check_gradients(config, 0.01);
}

// A dense layer and a layer of experts; adapters of both projections of fc1 and of one.
TEST(ModelGradient, AdaptersOfExperts) {
  for (const std::vector<std::string>& target :
       {std::vector<std::string>{"all-linear"}, {"up", "down"}, {"gate"}}) {
    Config config = testing::adapter_config(Family::llama);
    testing::set_experts(config.model);
    config.model.moe_router_topk = config.model.num_moe_experts;
    config.adapter.alpha = 6;
    config.adapter.target = target;
    check_gradients(config);
  }
}

TEST(ModelGradient, DropoutOfAdaptersOfExperts) {
  Config config = testing::adapter_config(Family::llama);
  testing::set_experts(config.model);
  config.model.moe_router_topk = config.model.num_moe_experts;
  config.adapter.alpha = 6;
  config.adapter.dropout = 0.2;
  check_gradients(config);
}

TEST(ModelGradient, SlidingWindow) {
  Config config = tiny_config(Family::llama);
  config.model.sliding_window = 5;
  check_gradients(config);
}

// A window and other RoPE frequencies in some of the layers.
TEST(ModelGradient, WindowsInSomeLayers) {
  Config config = tiny_config(Family::llama);
  config.model.num_layers = 3;
  config.model.sliding_window = 5;
  config.model.window_pattern = "f w";
  config.model.rope_local_theta = 50;
  check_gradients(config);
}

TEST(ModelGradient, Gemma3) {
  Config config = tiny_config(Family::llama);
  set_gemma3(config.model);
  check_gradients(config);
}

TEST(ModelGradient, GptWithSilu) {
  Config config = tiny_config(Family::gpt);
  config.model.activation = config::ActivationKind::silu;
  check_gradients(config);
}

TEST(ModelGradient, ZLoss) {
  Config config = tiny_config(Family::llama);
  config.training.z_loss_coefficient =
      0.3;  // large: log Z is about 4.5, so the z-loss is about as large as the loss
  check_gradients(config);
  TinyModel tiny(config);
  EXPECT_GT(tiny.objective(), tiny.evaluate() + 1);
}

// All experts are selected, because a step of the finite differences may change a selection.
TEST(ModelGradient, MixtureOfExperts) {
  Config config = tiny_config(Family::llama);
  testing::set_experts(config.model);
  config.model.moe_router_topk = config.model.num_moe_experts;
  check_gradients(config);
  config.model.moe_router_norm_topk_prob = false;
  config.model.moe_shared_expert_gate = false;
  config.model.moe_router_topk_scaling_factor = 2.0;
  check_gradients(config);
  config.model.moe_router_score_function = config::RouterScore::sigmoid;
  config.model.moe_shared_expert_intermediate_size = 0;
  check_gradients(config);
  // Steps are small, because they may change which tokens are dropped.
  config.model.moe_expert_capacity_factor = 0.5;
  check_gradients(config, 0.002, 1e-2);
}

TEST(ModelGradient, IgnoredTargetsContributeNothing) {
  TinyModel tiny(tiny_config(Family::llama));
  const int64_t n = tiny.tokens().numel();
  std::vector<int32_t> tokens(n, 3), targets(n, -1);
  tiny.set_batch(tokens, targets);
  EXPECT_EQ(tiny.forward_backward(), 0.0);
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    for (float g : tiny.read(parameter.grad)) ASSERT_EQ(g, 0.0f) << parameter.name;
  }
}

TEST(ModelGradient, AttentionIsCausal) {
  TinyModel tiny(tiny_config(Family::llama));
  const int64_t n = tiny.tokens().numel(), seq = 16;
  const auto losses_of_prefix = [&](int32_t last_token) {
    std::vector<int32_t> tokens(n), targets(n, -1);
    for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>((i * 7) % 61);
    for (int64_t row = seq - 1; row < n; row += seq) tokens[row] = last_token;
    for (int64_t i = 0; i < n; ++i) targets[i] = i % seq < seq - 1 ? tokens[(i + 1) % n] % 5 : -1;
    for (int64_t row = seq - 2; row < n; row += seq) targets[row] = 1;
    tiny.set_batch(tokens, targets);
    return tiny.evaluate();
  };
  EXPECT_EQ(losses_of_prefix(2), losses_of_prefix(50));
}

}  // namespace
}  // namespace te
