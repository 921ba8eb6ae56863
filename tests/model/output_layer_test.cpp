// The output layer in FP8: what is cast, how far its loss and gradients may lie from those in high precision, and that
// evaluation leaves its state alone.
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

// FP8 in the output layer alone. 160 sequences of 64 tokens make two chunks, the second one shorter.
Config head_alone(Family family, bool fp8, Fp8Recipe recipe = Fp8Recipe::delayed) {
  Config config = testing::tiny_config(family);
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
  std::vector<float> head, embedding;  ///< gradients
};

// After a step that changes no weight, so that delayed scaling runs on real scales.
Outcome settled(const Config& config) {
  TinyModel tiny(config);
  tiny.train_step(0.0f);
  Outcome outcome;
  outcome.loss = tiny.forward_backward();
  for (const parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
    if (parameter.name == "output_layer.weight") outcome.head = tiny.read(parameter.grad);
    if (parameter.name == "embedding.word_embeddings.weight") outcome.embedding = tiny.read(parameter.grad);
  }
  return outcome;
}

// E4M3 rounds to 2^-4 of a value, E5M2 to 2^-3, in random directions: the sum of many products of them is nearer than
// one. A wrong scale or a transposed operand is an error of the size of the gradient itself.
TEST(OutputLayer, Fp8GradientsAreNearThoseInHighPrecision) {
  for (const Family family : {Family::gpt, Family::llama}) {
    const Outcome exact = settled(head_alone(family, false));
    for (const Fp8Recipe recipe :
         {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::rowwise, Fp8Recipe::blockwise}) {
      SCOPED_TRACE(std::string(to_string(family)) + " " + std::string(to_string(recipe)));
      const Outcome cast = settled(head_alone(family, true, recipe));
      EXPECT_NEAR(cast.loss, exact.loss, 0.01 * exact.loss);
      EXPECT_NE(cast.loss, exact.loss);
      const double embedding = testing::relative_error(cast.embedding, exact.embedding);
      EXPECT_GT(embedding, 1e-3);
      EXPECT_LT(embedding, 0.15);
      if (family != Family::llama) continue;  // gpt's is tied
      const double head = testing::relative_error(cast.head, exact.head);
      EXPECT_GT(head, 1e-3);
      EXPECT_LT(head, 0.15);
    }
  }
}

TEST(OutputLayer, IsCastOnlyWhereAsked) {
  Config config = head_alone(Family::llama, true);
  TinyModel cast(config);
  const fp8::ScaleTable& table = cast.model().recipe().table();
  ASSERT_EQ(table.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table.info(i).name, "output_layer");
    EXPECT_EQ(table.info(i).layer, config.model.num_layers);
    EXPECT_EQ(table.info(i).format,
              table.info(i).role == OperandRole::grad_output ? DType::e5m2 : DType::e4m3);
  }
  config.precision.fp8_output_layer = false;
  TinyModel plain(config);
  EXPECT_EQ(plain.model().recipe().table().size(), 0);
}

TEST(OutputLayer, EvaluationLeavesItsAmaxesAlone) {
  TinyModel tiny(head_alone(Family::llama, true));
  tiny.train_step(1e-3f);
  const std::vector<float> before = tiny.read(tiny.model().recipe().table().amax);
  tiny.evaluate();
  EXPECT_EQ(tiny.read(tiny.model().recipe().table().amax), before);
}

}  // namespace
}  // namespace te
