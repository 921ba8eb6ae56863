// A nanochat-like model against a plain PyTorch model in FP64, whose logits were compared with transformers 5.24's
// NanoChatForCausalLM (rows of q and k with the halves of each head exchanged, because it rotates in the other
// direction; largest difference 3e-7). Like nanochat, the reference has QK norm after RoPE. Element i of parameter n is
// 0.3 sin(1 + 0.37 (n + 1) i); tokens and targets are below.
#include <cmath>

#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using testing::TinyModel;

struct Gradient {
  const char* parameter;
  double norm, along;  ///< Euclidean norm; scalar product with cos(i)
};
constexpr double kLoss = 4.10469394;
constexpr float kLogits[] = {0.0904699297f, 0.0732580696f,  0.0868438187f,  -0.0309862419f,
                             -0.032450097f, 0.0864490309f,  -0.0975793648f, -0.0951130378f,
                             0.0111888735f, -0.0317539201f, -0.0170699477f, 0.116541244f};
constexpr Gradient kGradients[] = {
    {"embedding.word_embeddings.weight", 0.820236721, 0.00022950447},
    {"layers.0.self_attention.linear_qkv.weight", 0.143020951, -0.00836509183},
    {"layers.0.self_attention.linear_proj.weight", 0.18866157, -0.00667081634},
    {"layers.0.mlp.linear_fc1.weight", 0.0629543338, 0.0004367309},
    {"layers.0.mlp.linear_fc2.weight", 0.0912900585, -0.0042194752},
    {"layers.1.self_attention.linear_qkv.weight", 0.064003189, 0.00108224444},
    {"layers.1.self_attention.linear_proj.weight", 0.535658653, 0.00183061628},
    {"layers.1.mlp.linear_fc1.weight", 0.0379702215, 0.000280176564},
    {"layers.1.mlp.linear_fc2.weight", 0.00599869537, 0.000326193293},
    {"output_layer.weight", 0.855824864, -0.272457716},
};

TEST(NanoChat, LogitsLossAndGradientsOfTorch) {
  config::Config config = testing::tiny_config(config::Family::llama);
  testing::set_nanochat(config.model);
  config.model.final_logit_softcapping = 0.2;  // most logits are of this size
  TinyModel tiny(config);
  int64_t n = 0;
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    std::vector<float> values(static_cast<size_t>(parameter.shape.numel()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(
          0.3 * std::sin(1.0 + 0.37 * static_cast<double>(n + 1) * static_cast<double>(i)));
    tiny.write(parameter.main, values);
    ++n;
  }
  const auto vocab = static_cast<int32_t>(config.model.vocab_size);
  std::vector<int32_t> tokens(32), targets(32);
  for (int32_t i = 0; i < 32; ++i) {
    tokens[static_cast<size_t>(i)] = (7 * i * i + 3 * i) % vocab;
    targets[static_cast<size_t>(i)] = (5 * i + 11) % vocab;
  }
  tiny.set_batch(tokens, targets);
  // All within FP32's rounding errors, as in the tests against other layouts.
  EXPECT_NEAR(tiny.forward_backward(), kLoss, 1e-5);
  for (const Gradient& expected : kGradients) {
    const std::vector<float> gradient = tiny.read(tiny.parameter(expected.parameter).grad);
    double squares = 0.0, along = 0.0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      squares += static_cast<double>(gradient[i]) * gradient[i];
      along += gradient[i] * std::cos(static_cast<double>(i));
    }
    EXPECT_NEAR(std::sqrt(squares) / expected.norm, 1.0, 1e-5) << expected.parameter;
    EXPECT_NEAR(along / expected.norm, expected.along / expected.norm, 1e-5) << expected.parameter;
  }
  const Context& context = tiny.context();
  testing::TestTensor logits(context, DType::f32, {32, config.model.padded_vocab_size()});
  tiny.model().forward_logits(context, tiny.tokens(), logits);
  const std::vector<float> all = logits.floats();
  for (size_t i = 0; i < std::size(kLogits); ++i) {
    const auto at = static_cast<int64_t>(97 * i);
    EXPECT_NEAR(all[static_cast<size_t>(at / vocab * config.model.padded_vocab_size() + at % vocab)],
                kLogits[i], 1e-5);
  }
}

}  // namespace
}  // namespace te
