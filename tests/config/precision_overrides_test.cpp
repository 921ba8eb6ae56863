// The rules of precision.overrides: selectors, settings, precedence, and invalid rules.
#include "config/precision_overrides.h"

#include "config_testing.h"

namespace te::config {
namespace {

LinearPrecision precision_of(const std::string& overrides, LinearKind linear, int layer = 1) {
  PrecisionConfig precision;
  precision.fp8 = Fp8Mode::hybrid;
  precision.overrides = overrides;
  return linear_precision(precision, {layer, linear}, 4);
}

std::string gemms(const LinearPrecision& linear) {
  return std::string(linear.fprop ? "f" : "-") + (linear.dgrad ? "d" : "-") + (linear.wgrad ? "w" : "-");
}

TEST(PrecisionOverrides, DefaultToTheModelsPrecision) {
  PrecisionConfig precision;
  EXPECT_FALSE(linear_precision(precision, {0, LinearKind::qkv}, 4).quantized());
  precision.fp8 = Fp8Mode::e4m3;
  precision.first_layers_bf16 = precision.last_layers_bf16 = 1;
  for (int layer = 0; layer < 4; ++layer)
    EXPECT_EQ(linear_precision(precision, {layer, LinearKind::qkv}, 4).quantized(), layer == 1 || layer == 2);
  EXPECT_EQ(linear_precision(precision, {1, LinearKind::qkv}, 4).grad_output, DType::e4m3);
  EXPECT_FALSE(linear_precision(precision, {4, LinearKind::output_layer}, 4).quantized());
  precision.fp8_output_layer = true;
  EXPECT_TRUE(linear_precision(precision, {4, LinearKind::output_layer}, 4).quantized());
}

TEST(PrecisionOverrides, SelectLinearsGemmsAndOperands) {
  EXPECT_EQ(gemms(precision_of("linear_fc2 wgrad: bf16", LinearKind::fc2)), "fd-");
  EXPECT_EQ(gemms(precision_of("linear_fc2 wgrad: bf16", LinearKind::fc1)), "fdw");
  EXPECT_EQ(gemms(precision_of("linear_fc2, linear_proj: bf16", LinearKind::proj)), "---");
  EXPECT_EQ(gemms(precision_of("fprop dgrad: bf16", LinearKind::qkv)), "--w");
  // An operand in BF16 makes all GEMMs that read it run in BF16.
  EXPECT_EQ(gemms(precision_of("input: bf16", LinearKind::qkv)), "-d-");
  EXPECT_EQ(gemms(precision_of("weight: bf16", LinearKind::qkv)), "--w");
  EXPECT_EQ(gemms(precision_of("grad_output: bf16", LinearKind::qkv)), "f--");
  EXPECT_EQ(precision_of("grad_output: e4m3", LinearKind::qkv).grad_output, DType::e4m3);
  EXPECT_EQ(precision_of("linear_qkv: blockwise", LinearKind::qkv).recipe, Fp8Recipe::blockwise);
  EXPECT_EQ(precision_of("linear_qkv: blockwise", LinearKind::fc1).recipe, Fp8Recipe::delayed);
}

// mxfp8 has E4M3 gradients also in the hybrid mode, unless a rule says otherwise.
TEST(PrecisionOverrides, ARecipeMayHaveItsFormat) {
  const auto gradient = [](const std::string& rules, LinearKind kind) {
    return precision_of(rules, kind).grad_output;
  };
  EXPECT_EQ(gradient("linear_qkv: mxfp8", LinearKind::qkv), DType::e4m3);
  EXPECT_EQ(gradient("linear_qkv: mxfp8", LinearKind::fc1), DType::e5m2);
  EXPECT_EQ(gradient("linear_qkv: nvfp4", LinearKind::qkv), DType::e2m1);
  EXPECT_EQ(gradient("linear_qkv: mxfp8; linear_qkv: blockwise", LinearKind::qkv), DType::e5m2);
  EXPECT_EQ(gradient("grad_output: e5m2; linear_qkv: mxfp8", LinearKind::qkv), DType::e5m2);
}

TEST(PrecisionOverrides, SelectLayersFromEitherEnd) {
  const auto layers = [](const std::string& rules) {
    std::string text;
    for (int layer = 0; layer < 4; ++layer)
      text += precision_of(rules, LinearKind::qkv, layer).quantized() ? "8" : "-";
    return text;
  };
  EXPECT_EQ(layers("layers 0: bf16"), "-888");
  EXPECT_EQ(layers("layers 0-1, -1: bf16"), "--8-");
  EXPECT_EQ(layers("layers -2--1: bf16"), "88--");
  EXPECT_EQ(layers("layer 2 linear_qkv: bf16"), "88-8");
  EXPECT_EQ(layers("layer 2 linear_fc1: bf16"), "8888");
}

TEST(PrecisionOverrides, LaterRulesWin) {
  EXPECT_EQ(gemms(precision_of("layers 0-3: bf16; layer 1: tensorwise\nwgrad: bf16", LinearKind::fc1)),
            "fd-");
  EXPECT_EQ(precision_of("layers 0-3: bf16; layer 1: tensorwise", LinearKind::fc1).recipe,
            Fp8Recipe::tensorwise);
}

// Rules without a linear apply to the layers only; the output layer must be named.
TEST(PrecisionOverrides, TheOutputLayerMustBeNamed) {
  EXPECT_FALSE(precision_of("linear_qkv: blockwise", LinearKind::output_layer).quantized());
  EXPECT_EQ(precision_of("output_layer: blockwise; wgrad: bf16", LinearKind::output_layer).recipe,
            Fp8Recipe::blockwise);
  EXPECT_EQ(gemms(precision_of("output_layer: blockwise; wgrad: bf16", LinearKind::output_layer)), "fdw");
  EXPECT_EQ(
      gemms(precision_of("output_layer: blockwise; output_layer wgrad: bf16", LinearKind::output_layer)),
      "fd-");
}

TEST(PrecisionOverrides, AreShownAsATable) {
  PrecisionConfig precision;
  precision.fp8 = Fp8Mode::hybrid;
  precision.overrides = "layers 0-1: blockwise; linear_fc2 wgrad: bf16";
  const std::string table = precision_table(precision, 4);
  EXPECT_NE(table.find("linear_qkv   layers 0-1      blockwise: input E4M3, weight E4M3, grad_output E5M2\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("layers 2-3      delayed"), std::string::npos) << table;
  EXPECT_NE(table.find("; wgrad in bf16"), std::string::npos) << table;
  EXPECT_NE(table.find("output_layer                 bf16\n"), std::string::npos) << table;
}

TEST(PrecisionOverrides, WithoutState) {
  EXPECT_EQ(stateless_overrides("layers 0: delayed; linear_fc2 wgrad: bf16"),
            "layers 0: tensorwise\nlinear_fc2 wgrad: bf16\n");
}

// A YAML block scalar keeps comments, so the rules can contain them.
TEST(PrecisionOverrides, CanHaveComments) {
  const std::string rules =
      "linear_fc2 input: bf16     # every GEMM that reads it: fprop and wgrad; not dgrad\n"
      "# layers 0: bf16\n"
      "layers -1: blockwise; grad_output: e4m3  # both\n";
  EXPECT_EQ(override_rules(rules), (std::vector<std::string>{"linear_fc2 input: bf16", "layers -1: blockwise",
                                                             "grad_output: e4m3"}));
  const Config config =
      parse_config(kSmall, "run.yaml", {"precision.fp8=hybrid", "precision.overrides=" + rules});
  EXPECT_TRUE(precision_table(config.precision, 2).find("layer 1         blockwise") != std::string::npos);
  EXPECT_EQ(stateless_overrides("linear_qkv: delayed # a: b; c"), "linear_qkv: tensorwise\n");
}

TEST(PrecisionOverrides, InvalidRulesAreRefused) {
  const auto refused = [](const std::string& rules, const std::string& part) {
    const std::string message = override_complaint({"precision.fp8=hybrid", "precision.overrides=" + rules});
    EXPECT_NE(message.find("precision.overrides: "), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  refused("linear_fc2", "has no colon");
  refused("linear_fc3: bf16", "unknown word 'linear_fc3'");
  refused("linear_fc2: fp4", "unknown setting 'fp4'");
  refused("layers: bf16", "names no layers");
  refused("layers 0-2: bf16", "names layer 2 of a model with 2");
  refused("layers 1-0: bf16", "has the range 1-0, which ends before it begins");
  refused("layers -1-0: bf16", "has the range -1-0, which ends before it begins");
  refused("output_layer layers 0: tensorwise", "names layers and output_layer");
  refused("wgrad: blockwise", "sets a recipe for a part of a linear");
  refused("linear_qkv: nvfp4; grad_output: e4m3", "a format, but nvfp4 has E2M1");
  refused("linear_fc1: e4m3", "sets a format, but names no operand");
  refused("wgrad: e4m3", "sets a format for a GEMM");
  refused("input: e5m2", "two E5M2 operands");
}

}  // namespace
}  // namespace te::config
