// precision.overrides in a model: parts in BF16 compute the same as a BF16 model, and other parts do not change.
#include <cmath>

#include "fp8/recipe.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Fp8Mode;
using testing::TinyModel;

config::Config tiny(const std::string& overrides, config::Family family = config::Family::llama) {
  config::Config config = testing::tiny_config(family);
  config.precision.dtype = config::ComputeDType::bf16;
  config.precision.fp8 = Fp8Mode::hybrid;
  config.precision.amax_history_len = 4;
  config.precision.overrides = overrides;
  return config;
}

/// The parameters after three steps.
std::vector<float> trained(const config::Config& config) {
  TinyModel model(config);
  for (int step = 0; step < 3; ++step) model.train_step(1e-2f);
  return model.read(model.model().parameters().mains);
}

/// The gradient of one parameter in the first step.
std::vector<float> gradient(const config::Config& config, const std::string& name) {
  TinyModel model(config);
  model.forward_backward();
  for (const auto& parameter : model.model().parameters().parameters()) {
    if (parameter.name == name) return model.read(parameter.grad);
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

TEST(Overrides, EverythingInBf16EqualsTheBf16Model) {
  for (const auto family : {config::Family::gpt, config::Family::llama}) {
    config::Config plain = tiny("", family);
    plain.precision.fp8 = Fp8Mode::off;
    EXPECT_EQ(trained(tiny("layers 0-1: bf16", family)), trained(plain));
    EXPECT_EQ(trained(tiny("fprop dgrad wgrad: bf16", family)), trained(plain));
    EXPECT_NE(trained(tiny("", family)), trained(plain));
  }
}

TEST(Overrides, LayersEqualTheKeysForLayers) {
  config::Config keys = tiny("");
  keys.precision.first_layers_bf16 = 1;
  EXPECT_EQ(trained(tiny("layers 0: bf16")), trained(keys));
  config::Config output_layer = tiny("");
  output_layer.precision.fp8_output_layer = true;
  EXPECT_EQ(trained(tiny("output_layer: delayed")), trained(output_layer));
}

TEST(Overrides, OneRecipeForAllLayersEqualsThatRecipe) {
  for (const auto recipe :
       {config::Fp8Recipe::tensorwise, config::Fp8Recipe::rowwise, config::Fp8Recipe::blockwise}) {
    config::Config plain = tiny("");
    plain.precision.fp8_recipe = recipe;
    EXPECT_EQ(trained(tiny(fmt::format("layers 0-1: {}", to_string(recipe)))), trained(plain));
  }
}

// With every fprop and dgrad in BF16, only wgrad is in FP8, except for a linear layer whose wgrad is also overridden.
TEST(Overrides, SelectSingleGemms) {
  config::Config plain = tiny("");
  plain.precision.fp8 = Fp8Mode::off;
  const std::string fc1 = "layers.0.mlp.linear_fc1.weight", fc2 = "layers.0.mlp.linear_fc2.weight",
                    norm = "layers.0.input_layernorm.weight";
  for (const std::string recipe : {"delayed", "tensorwise", "rowwise", "blockwise"}) {
    SCOPED_TRACE(recipe);
    const config::Config config =
        tiny(fmt::format("layers 0-1: {}; fprop dgrad: bf16; linear_fc2 wgrad: bf16", recipe));
    EXPECT_EQ(gradient(config, norm), gradient(plain, norm));
    EXPECT_EQ(gradient(config, fc2), gradient(plain, fc2));
    const double error = testing::relative_error(gradient(config, fc1), gradient(plain, fc1));
    EXPECT_GT(error, 1e-3);
    EXPECT_LT(error, 0.1);
  }
}

// Inputs have only the layout of wgrad, which an evaluation does not need.
TEST(Overrides, EvaluationsWithoutQuantizedGemmsEqualTheBf16Model) {
  config::Config plain = tiny("");
  plain.precision.fp8 = Fp8Mode::off;
  for (const std::string recipe : {"delayed", "tensorwise", "rowwise", "blockwise"}) {
    SCOPED_TRACE(recipe);
    EXPECT_EQ(TinyModel(tiny(fmt::format("layers 0-1: {}; fprop: bf16", recipe))).evaluate(),
              TinyModel(plain).evaluate());
  }
}

TEST(Overrides, SelectFormatsOfOperands) {
  TinyModel model(tiny("grad_output: e4m3; linear_fc2 input: e5m2"));
  int seen = 0;
  const fp8::ScaleTable& table = model.model().recipe().table();
  for (int i = 0; i < table.size(); ++i) {
    const fp8::OperandInfo& info = table.info(i);
    const bool fc2_input = info.role == fp8::OperandRole::input && info.linear.kind == LinearKind::fc2;
    EXPECT_EQ(info.format, fc2_input ? DType::e5m2 : DType::e4m3) << info.linear.name();
    seen += fc2_input ? 1 : 0;
  }
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace te
