// The output layer in FP8: which operands are quantized, how much loss and gradients may differ from high precision,
// and that evaluation does not change the FP8 state.
#include <cmath>

#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Config;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using fp8::OperandRole;
using testing::TinyModel;

// FP8 in the output layer only. 160 sequences of 64 tokens give two chunks, the second one shorter.
Config output_layer_config(Family family, bool fp8, Fp8Recipe recipe = Fp8Recipe::delayed) {
  Config config = testing::tiny_config(family);
  config.model.ffn_hidden_size = 64;
  config.precision.fp8 = fp8 ? Fp8Mode::hybrid : Fp8Mode::off;
  config.precision.fp8_recipe = recipe;
  config.precision.fp8_output_layer = true;
  config.precision.amax_history_len = 4;
  config.precision.first_layers_bf16 = config.model.num_layers;
  config.model.seq_length = config.model.max_position_embeddings = 64;
  config.training.micro_batch_size = config.training.global_batch_size = 160;
  return config;
}

struct Outcome {
  double loss = 0;
  std::vector<float> output_layer, embedding;  ///< gradients
};

// Results after a step with learning rate 0, so that delayed scaling has scales.
Outcome outcome_with_scales(const Config& config) {
  TinyModel tiny(config);
  tiny.train_step(0.0f);
  Outcome outcome;
  outcome.loss = tiny.forward_backward();
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    if (parameter.name == "output_layer.weight") outcome.output_layer = tiny.read(parameter.grad);
    if (parameter.name == "embedding.word_embeddings.weight") outcome.embedding = tiny.read(parameter.grad);
  }
  return outcome;
}

// E4M3 rounds to 2^-4 of a value, E5M2 to 2^-3. The errors have random signs, so the relative error of a sum of many
// products is smaller. A wrong scale or a transposed operand gives an error as large as the gradient.
TEST(OutputLayer, Fp8GradientsAreCloseToHighPrecision) {
  for (const Family family : {Family::gpt, Family::llama}) {
    const Outcome exact = outcome_with_scales(output_layer_config(family, false));
    for (const Fp8Recipe recipe : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::rowwise,
                                   Fp8Recipe::blockwise, Fp8Recipe::mxfp8}) {
      SCOPED_TRACE(std::string(to_string(family)) + " " + std::string(to_string(recipe)));
      const Outcome quantized = outcome_with_scales(output_layer_config(family, true, recipe));
      EXPECT_NEAR(quantized.loss, exact.loss, 0.01 * exact.loss);
      EXPECT_NE(quantized.loss, exact.loss);
      const double embedding = testing::relative_error(quantized.embedding, exact.embedding);
      EXPECT_GT(embedding, 1e-3);
      EXPECT_LT(embedding, 0.15);
      if (family != Family::llama) continue;  // gpt's is tied
      const double output_layer = testing::relative_error(quantized.output_layer, exact.output_layer);
      EXPECT_GT(output_layer, 1e-3);
      EXPECT_LT(output_layer, 0.15);
    }
  }
}

TEST(OutputLayer, IsQuantizedOnlyIfConfigured) {
  Config config = output_layer_config(Family::llama, true);
  TinyModel quantized(config);
  const fp8::ScaleTable& table = quantized.model().recipe().table();
  ASSERT_EQ(table.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table.info(i).linear.name(), "output_layer");
    EXPECT_EQ(table.info(i).linear.layer, config.model.num_layers);
    EXPECT_EQ(table.info(i).format,
              table.info(i).role == OperandRole::grad_output ? DType::e5m2 : DType::e4m3);
  }
  config.precision.fp8_output_layer = false;
  TinyModel plain(config);
  EXPECT_EQ(plain.model().recipe().table().size(), 0);
}

TEST(OutputLayer, EvaluationDoesNotChangeItsAmaxes) {
  TinyModel tiny(output_layer_config(Family::llama, true));
  tiny.train_step(1e-3f);
  const std::vector<float> before = tiny.read(tiny.model().recipe().table().amax);
  tiny.evaluate();
  EXPECT_EQ(tiny.read(tiny.model().recipe().table().amax), before);
}

}  // namespace
}  // namespace te
