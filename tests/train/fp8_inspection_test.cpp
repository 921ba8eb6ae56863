// Inspection of synthetic statistics: which quantizations are listed, in which order, which are harmful, and which
// overrides are advised.
#include "train/fp8_inspection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/precision_overrides.h"
#include "testing/files.h"
#include "train/override_advice.h"

namespace te::train {
namespace {

using config::Fp8Recipe;
using fp8::OperandRole;

const std::vector<std::string> kRecipes = {"tensorwise", "rowwise", "blockwise"};
constexpr int64_t kLayers = 4;

config::PrecisionConfig hybrid(const std::string& overrides = "") {
  config::PrecisionConfig precision;
  precision.fp8 = config::Fp8Mode::hybrid;
  precision.overrides = overrides;
  return precision;
}

/// A quantization of 1000 values with this SQNR.
QuantizationStatistics quantization(int layer, const std::string& linear, OperandRole role,
                                    const std::string& recipe, bool what_if, const std::string& layout,
                                    double sqnr, unsigned long long saturated = 0,
                                    unsigned long long flushed = 0) {
  QuantizationStatistics s;
  s.operand = {{layer, linear_kind_of(linear).value()},
               role,
               role == OperandRole::grad_output ? DType::e5m2 : DType::e4m3};
  s.recipe = recipe;
  s.what_if = what_if;
  s.layouts = layout;
  s.sums = {};
  s.sums.sum2 = std::pow(10.0, sqnr / 10.0);
  s.sums.squared_error = 1.0;
  s.sums.count = 1000;
  s.sums.saturated = saturated;
  s.sums.flushed = flushed;
  s.sums.amax = 2.0f;
  return s;
}

/// An operand under `recipe`, and the results of the other recipes; only rowwise quantizes two layouts.
void add(Fp8Statistics& statistics, int layer, const std::string& linear, OperandRole role, double own,
         double tensorwise, double rowwise, double columnwise, double blockwise,
         const std::string& recipe = "delayed") {
  auto& all = statistics.operands;
  all.push_back(
      quantization(layer, linear, role, recipe, recipe == "none", recipe == "none" ? "" : "both", own));
  all.push_back(quantization(layer, linear, role, "tensorwise", true, "both", tensorwise));
  all.push_back(quantization(layer, linear, role, "rowwise", true, "rowwise", rowwise));
  all.push_back(quantization(layer, linear, role, "rowwise", true, "columnwise", columnwise));
  all.push_back(quantization(layer, linear, role, "blockwise", true, "both", blockwise));
}

void add_good(Fp8Statistics& statistics, int layer, const std::string& linear,
              const std::string& recipe = "delayed") {
  for (const OperandRole role : {OperandRole::input, OperandRole::weight})
    add(statistics, layer, linear, role, 31, 31, 31, 31, 31, recipe);
  add(statistics, layer, linear, OperandRole::grad_output, 25, 25, 25, 25, 25, recipe);
}

OverrideAdvice advice(const Fp8Statistics& statistics, const config::PrecisionConfig& precision) {
  const auto quantizations = inspected_quantizations(statistics, precision, kLayers, Fp8Recipe::tensorwise);
  return advise(quantizations, precision, kLayers, kRecipes, {}, Fp8Recipe::tensorwise);
}

TEST(Fp8Inspection, ComparesWithTheWorseOfTwoLayouts) {
  Fp8Statistics statistics;
  add(statistics, 1, "linear_fc2", OperandRole::input, 20, 30, 29, 11, 31);
  const auto quantizations = inspected_quantizations(statistics, hybrid(), kLayers, Fp8Recipe::tensorwise);
  ASSERT_EQ(quantizations.size(), 1u);
  EXPECT_EQ(quantizations[0].recipe, "delayed");
  EXPECT_EQ(quantizations[0].gemms, (std::vector<std::string>{"fprop", "wgrad"}));
  EXPECT_NEAR(quantizations[0].own.sqnr_db, 20, 1e-9);
  EXPECT_NEAR(quantizations[0].others.at("tensorwise").sqnr_db, 30, 1e-9);
  EXPECT_NEAR(quantizations[0].others.at("rowwise").sqnr_db, 11, 1e-9);
  EXPECT_NEAR(shortfall_db(quantizations[0].own, DType::e4m3), 11.5, 1e-9);
}

TEST(Fp8Inspection, LayoutsDetermineTheGemms) {
  Fp8Statistics statistics;
  for (const char* layout : {"rowwise", "columnwise"})
    for (const OperandRole role : {OperandRole::input, OperandRole::weight, OperandRole::grad_output})
      statistics.operands.push_back(quantization(0, "linear_qkv", role, "rowwise", false, layout, 30));
  config::PrecisionConfig precision = hybrid("linear_qkv wgrad: bf16");
  precision.fp8_recipe = Fp8Recipe::rowwise;
  std::string text;
  for (const InspectedQuantization& c :
       inspected_quantizations(statistics, precision, kLayers, Fp8Recipe::tensorwise))
    text += std::string(fp8::role_name(c.operand.role)) + " " + c.gemms.at(0) + "; ";
  // The layouts for the BF16 GEMM are not quantized.
  EXPECT_EQ(text, "input fprop; weight fprop; weight dgrad; grad_output dgrad; ");
}

TEST(Fp8Inspection, Bf16ModelIsJudgedByTheReference) {
  Fp8Statistics statistics;
  add(statistics, 0, "linear_qkv", OperandRole::input, 0, 22, 30, 31, 32, "none");
  config::PrecisionConfig precision;
  const auto quantizations = inspected_quantizations(statistics, precision, kLayers, Fp8Recipe::tensorwise);
  ASSERT_EQ(quantizations.size(), 1u);
  EXPECT_EQ(quantizations[0].recipe, "tensorwise");
  EXPECT_NEAR(quantizations[0].own.sqnr_db, 22, 1e-9);
  EXPECT_FALSE(quantizations[0].others.contains("tensorwise"));
  EXPECT_EQ(inspected_quantizations(statistics, precision, kLayers, Fp8Recipe::rowwise).size(), 2u);
  // A layer that stays in BF16 is not quantized.
  precision.first_layers_bf16 = 1;
  EXPECT_TRUE(inspected_quantizations(statistics, precision, kLayers, Fp8Recipe::tensorwise).empty());
}

TEST(Fp8Inspection, LowSqnrAndLostValuesAreHarmful) {
  const QuantizationLimits limits;
  EXPECT_FALSE(harmful({28.6, 0, 0}, DType::e4m3, limits));
  EXPECT_TRUE(harmful({28.4, 0, 0}, DType::e4m3, limits));
  EXPECT_FALSE(harmful({23, 0, 0}, DType::e5m2, limits));
  EXPECT_TRUE(harmful({31, 0.002, 0}, DType::e4m3, limits));
  EXPECT_TRUE(harmful({31, 0, 0.06}, DType::e4m3, limits));
  EXPECT_FALSE(harmful({std::nan(""), 0, 0}, DType::e4m3, limits));  // zeros
  EXPECT_FALSE(harmful({INFINITY, 0, 0}, DType::e4m3, limits));
}

TEST(Fp8Inspection, WorstAreFirstAndMarked) {
  Fp8Statistics statistics;
  add_good(statistics, 0, "linear_qkv");
  add(statistics, 3, "linear_fc2", OperandRole::input, 12.34, 31, 31, 31, 31);
  // A lower SQNR than the inputs above, but normal for E5M2.
  add(statistics, 2, "linear_fc1", OperandRole::grad_output, 25.6, 25, 25, 25, 25);
  auto quantizations = inspected_quantizations(statistics, hybrid(), kLayers, Fp8Recipe::tensorwise);
  sort_worst_first(quantizations, {});
  EXPECT_EQ(quantizations.front().operand.linear.layer, 3);
  EXPECT_EQ(quantizations.back().operand.linear.layer, 2);
  const std::string table = quantization_table(quantizations, 1, kRecipes, {});
  EXPECT_EQ(std::ranges::count(table, '\n'), 2) << table;
  TE_EXPECT_CONTAINS(table,
                     "\n!     3 linear_fc2   input E4M3       fprop, wgrad delayed            2         0");
  TE_EXPECT_CONTAINS(table, " 12.3 ");
  quantizations.front().own.saturated = 2e-5;
  quantizations.front().own.flushed = 0.1234;
  TE_EXPECT_CONTAINS(quantization_table(quantizations, 1, kRecipes, {}), "   <0.01%   12.34%");
  const nlohmann::json record = to_json(quantizations.front(), {});
  EXPECT_EQ(record["harmful"], true);
  EXPECT_NEAR(record["what_if"]["blockwise"]["sqnr_db"].get<double>(), 31, 1e-9);
}

TEST(OverrideAdvice, IsEmptyIfNothingIsHarmful) {
  Fp8Statistics statistics;
  for (int layer = 0; layer < kLayers; ++layer) add_good(statistics, layer, "linear_fc2");
  const OverrideAdvice found = advice(statistics, hybrid("linear_qkv: bf16"));
  EXPECT_TRUE(found.rules.empty());
  EXPECT_EQ(found.yaml, "");
  EXPECT_EQ(found.overrides, "linear_qkv: bf16");
}

TEST(OverrideAdvice, ChoosesTheFirstRecipeThatFixesTheWholeLinear) {
  Fp8Statistics statistics;
  for (const int layer : {0, 1, 3}) {
    add_good(statistics, layer, "linear_fc2");
    // tensorwise fixes the input, but not the gradient.
    add(statistics, layer, "linear_fc1", OperandRole::input, 10, 31, 31, 31, 31);
    add(statistics, layer, "linear_fc1", OperandRole::weight, 31, 31, 31, 31, 31);
    add(statistics, layer, "linear_fc1", OperandRole::grad_output, 10, 12, 25, 9, 25);
    add(statistics, layer, "linear_proj", OperandRole::input, 9, 30, 31, 31, 31);
  }
  const OverrideAdvice found = advice(statistics, hybrid());
  EXPECT_EQ(found.rules, (std::vector<std::string>{"layers 0-1, 3 linear_fc1: blockwise",
                                                   "layers 0-1, 3 linear_proj: tensorwise"}));
  EXPECT_NEAR(found.worst_now_db, 9, 1e-9);
  EXPECT_NEAR(found.worst_then_db, 25, 1e-9);
  EXPECT_EQ(found.yaml,
            "precision:\n  overrides: |\n    layers 0-1, 3 linear_fc1: blockwise\n    layers 0-1, 3 "
            "linear_proj: tensorwise\n");
}

TEST(OverrideAdvice, UsesBf16IfNoRecipeHelps) {
  Fp8Statistics statistics;
  for (int layer = 0; layer < kLayers; ++layer) {
    add(statistics, layer, "linear_fc2", OperandRole::input, 10, 11, 12, 13, 12);
    add(statistics, layer, "linear_fc2", OperandRole::weight, 31, 31, 31, 31, 31);
  }
  OverrideAdvice found = advice(statistics, hybrid());
  EXPECT_EQ(found.rules, std::vector<std::string>{"linear_fc2 fprop, wgrad: bf16"});
  EXPECT_NEAR(found.worst_then_db, 31, 1e-9);  // the weight, which dgrad still reads in FP8
  for (int layer = 0; layer < kLayers; ++layer)
    add(statistics, layer, "linear_fc2", OperandRole::grad_output, 1, 1, 1, 1, 1);
  found = advice(statistics, hybrid());
  EXPECT_EQ(found.rules, std::vector<std::string>{"linear_fc2: bf16"});
  EXPECT_TRUE(std::isinf(found.worst_then_db));
}

TEST(OverrideAdvice, KeepsExistingRules) {
  Fp8Statistics statistics;
  add(statistics, 2, "linear_fc2", OperandRole::input, 10, 31, 31, 31, 31);
  const config::PrecisionConfig precision = hybrid(" linear_fc2 wgrad: bf16 ;; layers 0: bf16\n");
  const OverrideAdvice found = advice(statistics, precision);
  // A recipe rule alone would enable FP8 for wgrad.
  EXPECT_EQ(found.overrides,
            "linear_fc2 wgrad: bf16\nlayers 0: bf16\nlayers 2 linear_fc2: tensorwise\nlayers 2 linear_fc2 "
            "wgrad: bf16");
  const config::LinearPrecision linear =
      config::linear_precision(hybrid(found.overrides), {2, LinearKind::fc2}, kLayers);
  EXPECT_TRUE(linear.fprop && linear.dgrad && !linear.wgrad);
  EXPECT_EQ(linear.recipe, Fp8Recipe::tensorwise);
  EXPECT_EQ(config::linear_precision(hybrid(found.overrides), {3, LinearKind::fc2}, kLayers).recipe,
            Fp8Recipe::delayed);
}

TEST(OverrideAdvice, NamesTheOutputLayerWithoutLayers) {
  Fp8Statistics statistics;
  config::PrecisionConfig precision = hybrid();
  precision.fp8_output_layer = true;
  add(statistics, kLayers, "output_layer", OperandRole::grad_output, 3, 4, 25, 25, 25);
  const OverrideAdvice found = advice(statistics, precision);
  EXPECT_EQ(found.rules, std::vector<std::string>{"output_layer: rowwise"});
  precision.overrides = found.overrides;
  config::check_overrides(precision, kLayers);
  EXPECT_EQ(config::linear_precision(precision, {0, LinearKind::output_layer}, kLayers).recipe,
            Fp8Recipe::rowwise);
}

TEST(OverrideAdvice, TurnsFp8OnForABf16Model) {
  Fp8Statistics statistics;
  add(statistics, 0, "linear_qkv", OperandRole::input, 0, 22, 31, 31, 32, "none");
  config::PrecisionConfig precision;
  precision.fp8_calibrate = true;
  EXPECT_EQ(
      advice(statistics, precision).yaml,
      "precision:\n  fp8: hybrid\n  fp8_recipe: tensorwise\n  fp8_calibrate: false\n  overrides: |\n    "
      "layers 0 linear_qkv: rowwise\n");
  precision.fp8_calibrate = false;
  precision.dtype = config::ComputeDType::fp16;  // not valid with FP8
  TE_EXPECT_CONTAINS(advice(statistics, precision).yaml,
                     "precision:\n  dtype: bf16\n  fp8: hybrid\n  fp8_recipe: tensorwise\n");
}

}  // namespace
}  // namespace te::train
