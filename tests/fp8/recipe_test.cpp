// Recipes: which operands are FP8, in which format, and with which scale. The scales are powers of two, so all expected
// values are exact.
#include "fp8/recipe.h"

#include <limits>
#include <map>

#include "core/float_types.h"
#include "kernels/activation/activation.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "model/tiny_model.h"
#include "testing/testing.h"
#include "train/metrics.h"

namespace te {
namespace {

using config::Fp8Mode;
using config::Fp8Recipe;
using config::PrecisionConfig;
using fp8::OperandRole;
using fp8::Quantizer;
using testing::TestTensor;

PrecisionConfig precision(Fp8Mode mode, Fp8Recipe recipe = Fp8Recipe::delayed) {
  PrecisionConfig config;
  config.fp8 = mode;
  config.fp8_recipe = recipe;
  config.amax_history_len = 3;
  return config;
}

const Fp8Recipe kAllRecipes[] = {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::rowwise,
                                 Fp8Recipe::blockwise};
const OperandRole kRoles[] = {OperandRole::input, OperandRole::weight, OperandRole::grad_output};

/// FP8 layouts of a [rows, cols] operand in the test's memory.
struct Storage {
  Storage(const Context& context, DType format, int64_t rows, int64_t cols)
      : rowwise(context, format, {rows, cols}),
        columnwise(context, format, {cols, rows}),
        scale_inv(context, DType::f32, {1}) {}
  fp8::Operand operand() const {
    fp8::Operand result;
    result.rowwise = {rowwise, scale_inv, kernels::ScaleLayout::tensor};
    result.columnwise = {columnwise, scale_inv, kernels::ScaleLayout::tensor};
    return result;
  }
  bool operator==(const Storage& other) const {
    return rowwise.raw() == other.rowwise.raw() && columnwise.raw() == other.columnwise.raw() &&
           scale_inv.raw() == other.scale_inv.raw();
  }
  TestTensor rowwise, columnwise, scale_inv;
};

/// A recipe with its state allocated.
class Bench {
 public:
  Bench(const PrecisionConfig& config, int operands, OperandRole role = OperandRole::input)
      : recipe_(fp8::make_recipe(config, 1)) {
    for (int i = 0; i < operands; ++i)
      quantizers_.push_back(recipe_->quantizer({0, kLinearKinds[static_cast<size_t>(i)]}, role));
    recipe_->plan(plan_);
    memory_ = plan_.allocate(context_);
    recipe_->reset(context_);
  }

  /// Quantizes `values` as an FP32 operand [rows, values / rows] and returns the dequantized values.
  std::vector<float> quantize(int index, const std::vector<float>& values, int64_t rows,
                              fp8::QuantizeMode mode = {.record_amax = true}) {
    const int64_t cols = static_cast<int64_t>(values.size()) / rows;
    const Quantizer& quantizer = quantizers_[static_cast<size_t>(index)];
    TestTensor high_precision(context_, DType::f32, {rows, cols});
    high_precision.fill(values);
    Storage storage(context_, quantizer.layouts().format, rows, cols);
    quantizer.complete(context_, storage.operand(), {.high_precision = high_precision}, mode);
    const std::vector<uint8_t> row = storage.rowwise.raw(), column = storage.columnwise.raw();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(row[r * cols + c], column[c * rows + r]);
    }
    std::vector<float> seen = storage.rowwise.floats();
    for (float& value : seen) value *= storage.scale_inv.floats()[0];
    return seen;
  }
  float scale(int index) { return recipe_->table().scale_of(index).as<float>()[0]; }
  float amax(int index) { return recipe_->table().amax_of(index).as<float>()[0]; }
  const float* last_scale(int index) { return &recipe_->table().tensor_state_of(index)->scale; }
  kernels::Fp8Counters counters(int index) { return *recipe_->table().counters_of(index); }

  Context& context() { return context_; }
  fp8::Recipe& recipe() { return *recipe_; }
  Quantizer& quantizer(int index) { return quantizers_[static_cast<size_t>(index)]; }

 private:
  Context context_ = Context::cpu();
  std::unique_ptr<fp8::Recipe> recipe_;
  std::vector<Quantizer> quantizers_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
};

// --- which operands, which format --------------------------------------------------------------------------

TEST(Recipe, FormatsFollowModeAndRole) {
  const std::map<Fp8Mode, DType> gradient_format = {{Fp8Mode::hybrid, DType::e5m2},
                                                    {Fp8Mode::e4m3, DType::e4m3}};
  for (const auto& [mode, format] : gradient_format) {
    for (Fp8Recipe kind : kAllRecipes) {
      const auto recipe = fp8::make_recipe(precision(mode, kind), 1);
      for (OperandRole role : kRoles) {
        const Quantizer quantizer = recipe->quantizer({0, LinearKind::fc1}, role);
        EXPECT_TRUE(quantizer.layouts().quantized());
        EXPECT_EQ(quantizer.layouts().transposes(),
                  kind == Fp8Recipe::delayed || kind == Fp8Recipe::tensorwise);
        EXPECT_EQ(quantizer.layouts().format, role == OperandRole::grad_output ? format : DType::e4m3);
      }
    }
  }
}

TEST(Recipe, FirstAndLastLayersStayUnquantized) {
  for (Fp8Recipe kind : kAllRecipes) {
    PrecisionConfig config = precision(Fp8Mode::hybrid, kind);
    config.first_layers_bf16 = 1;
    config.last_layers_bf16 = 2;
    const auto recipe = fp8::make_recipe(config, 5);
    for (int layer = 0; layer < 5; ++layer) {
      for (OperandRole role : kRoles)
        EXPECT_EQ(recipe->quantizer({layer, LinearKind::fc1}, role).layouts().quantized(),
                  layer == 1 || layer == 2)
            << layer;
    }
    EXPECT_EQ(recipe->table().size(), 2 * 3);
  }
}

TEST(Recipe, OffTracksOperandsOnlyWhenCalibrating) {
  PrecisionConfig config = precision(Fp8Mode::off);
  for (bool calibrate : {false, true}) {
    config.fp8_calibrate = calibrate;
    const auto recipe = fp8::make_recipe(config, 1);
    for (OperandRole role : kRoles)
      EXPECT_FALSE(recipe->quantizer({0, LinearKind::fc1}, role).layouts().quantized());
    EXPECT_EQ(recipe->table().size(), calibrate ? 3 : 0);
  }
}

// A model whose layers are all excluded equals the BF16 model, bit for bit.
TEST(Recipe, AModelOfUnquantizedLayersEqualsTheBf16Model) {
  for (Fp8Recipe kind : kAllRecipes) {
    config::Config config = testing::tiny_config(config::Family::llama);
    config.precision.dtype = config::ComputeDType::bf16;
    testing::TinyModel plain(config);
    config.precision.fp8 = Fp8Mode::hybrid;
    config.precision.fp8_recipe = kind;
    testing::TinyModel all_fp8(config);
    config.precision.first_layers_bf16 = config.precision.last_layers_bf16 = 1;
    testing::TinyModel left_out(config);
    for (testing::TinyModel* tiny : {&plain, &all_fp8, &left_out})
      for (int step = 0; step < 2; ++step) tiny->train_step(1e-2f);
    const auto trained = [](testing::TinyModel& tiny) { return tiny.read(tiny.model().parameters().mains); };
    EXPECT_EQ(trained(left_out), trained(plain));
    EXPECT_NE(trained(all_fp8), trained(plain));
  }
}

// --- scales ------------------------------------------------------------------------------------------------

TEST(TensorwiseRecipe, ScaleComesFromTheTensorItself) {
  Bench bench(precision(Fp8Mode::hybrid, Fp8Recipe::tensorwise), 2);
  // amax 3.5: scale 448 / 3.5 = 128; the largest value is FP8's largest.
  const std::vector<float> values = {0.25f, -3.5f, 1.0f, 0.0f, 2.0f, -0.125f};
  EXPECT_EQ(bench.quantize(0, values, 2), values);  // each times 128 is an E4M3 number
  EXPECT_EQ(bench.scale(0), 128.0f);
  EXPECT_EQ(bench.amax(0), 3.5f);
  // A smaller tensor has another scale: the larger one has no effect on it.
  EXPECT_EQ(bench.quantize(0, {0.875f, 0.5f}, 1), (std::vector<float>{0.875f, 0.5f}));
  EXPECT_EQ(bench.scale(0), 512.0f);
  // Without a finite amax above 0, the scale is 1.
  EXPECT_EQ(bench.quantize(1, {0.0f, 0.0f}, 1), (std::vector<float>{0.0f, 0.0f}));
  EXPECT_EQ(bench.scale(1), 1.0f);
  bench.quantize(1, {std::numeric_limits<float>::infinity(), 1.0f}, 1);
  EXPECT_EQ(bench.scale(1), 1.0f);
}

TEST(TensorwiseRecipe, ScaleDependsOnMarginAndFormat) {
  PrecisionConfig config = precision(Fp8Mode::hybrid, Fp8Recipe::tensorwise);
  config.margin = 2;
  Bench inputs(config, 1), gradients(config, 1, OperandRole::grad_output);
  inputs.quantize(0, {3.5f, 1.0f}, 1);
  EXPECT_EQ(inputs.scale(0), 32.0f);  // 448 / 4 / 3.5
  gradients.quantize(0, {7.0f, 1.0f}, 1);
  EXPECT_EQ(gradients.scale(0), 2048.0f);  // 57344 / 4 / 7
}

// Scales of 448 / amax, rounded down to powers of two: the last scale predicts the next one, also after the counters
// are reset. A wrong prediction changes only the fraction of requantized tensors.
TEST(TensorwiseRecipe, PredictsPowersOfTwo) {
  PrecisionConfig config = precision(Fp8Mode::hybrid, Fp8Recipe::tensorwise);
  config.fp8_scale_format = config::Fp8ScaleFormat::power_of_two;
  for (const OperandRole role : {OperandRole::input, OperandRole::weight}) {
    Bench bench(config, 1, role);
    EXPECT_TRUE(bench.recipe().requantizes());
    const fp8::QuantizeMode mode{.record_amax = true, .count = true};
    const auto quantize = [&](float largest, float scale) {
      const std::vector<float> values = {largest, -1.0f, 0.25f, 0.0f};
      EXPECT_EQ(bench.quantize(0, values, 2, mode), values);
      EXPECT_EQ(bench.scale(0), scale);
      EXPECT_EQ(bench.amax(0), largest);
      EXPECT_EQ(bench.counters(0).saturated + bench.counters(0).flushed, 0u);
    };
    quantize(10.0f, 32.0f);
    bench.recipe().table().zero_counters(bench.context());
    quantize(13.0f, 32.0f);
    quantize(20.0f, 16.0f);
    quantize(16.0f, 16.0f);
    EXPECT_EQ(bench.counters(0).total, 12u);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(train::read_fp8_health(bench.context(), bench.recipe().table())[0].requantized, 1.0 / 3.0);
  }
}

TEST(DelayedRecipe, ScaleComesFromTheAmaxesOfEarlierSteps) {
  Bench bench(precision(Fp8Mode::hybrid), 1);
  const auto step = [&](float amax) {
    bench.quantize(0, {amax / 2, -amax}, 1);
    EXPECT_EQ(bench.amax(0), amax);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.amax(0), 0.0f);
    return bench.scale(0);
  };
  EXPECT_EQ(step(7.0f), 64.0f);
  EXPECT_EQ(step(3.5f), 64.0f);  // the history of 3 steps still has the 7
  EXPECT_EQ(step(1.75f), 64.0f);
  EXPECT_EQ(step(0.875f), 128.0f);  // the 7 has left: 448 / 3.5
  EXPECT_EQ(step(14.0f), 32.0f);
}

TEST(DelayedRecipe, AmaxIsTheLargestOfTheStepsPasses) {
  Bench bench(precision(Fp8Mode::hybrid), 1);
  bench.quantize(0, {1.0f, 3.5f}, 1);
  bench.quantize(0, {1.0f, 1.75f}, 1);      // the second microbatch
  bench.quantize(0, {1.0f, 99.0f}, 1, {});  // evaluation records nothing
  bench.recipe().update(bench.context(), nullptr);
  EXPECT_EQ(bench.scale(0), 128.0f);
}

TEST(DelayedRecipe, MostRecentIgnoresEarlierSteps) {
  PrecisionConfig config = precision(Fp8Mode::e4m3);
  config.amax_compute_algo = config::AmaxAlgo::most_recent;
  config.margin = 1;
  Bench bench(config, 1);
  for (const auto& [amax, scale] : {std::pair{7.0f, 32.0f}, {0.875f, 256.0f}, {0.0f, 256.0f}}) {
    bench.quantize(0, {amax, 0.0f}, 1);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), scale);
  }
}

TEST(DelayedRecipe, ASkippedStepKeepsScaleAndHistory) {
  Bench bench(precision(Fp8Mode::hybrid), 1);
  bench.quantize(0, {3.5f, 1.0f}, 1);
  bench.recipe().update(bench.context(), nullptr);
  const int32_t skip = 1;
  bench.quantize(0, {std::numeric_limits<float>::infinity(), 1.0f}, 1);
  bench.recipe().update(bench.context(), &skip);
  EXPECT_EQ(bench.scale(0), 128.0f);
  EXPECT_EQ(bench.recipe().table().position.as<int32_t>()[0], 1);
  EXPECT_EQ(bench.amax(0), 0.0f);
}

// --- values that overflow the scale ------------------------------------------------------------------------

TEST(DelayedRecipe, RequantizesTensorsThatOverflowTheScale) {
  for (const auto& [role, limit] :
       {std::pair{OperandRole::input, 448.0f}, {OperandRole::grad_output, 57344.0f}}) {
    Bench bench(precision(Fp8Mode::hybrid), 1, role);
    bench.quantize(0, {7.0f, 1.0f}, 1);
    bench.recipe().update(bench.context(), nullptr);
    const float scale = limit / 7.0f;
    ASSERT_EQ(bench.scale(0), scale);
    const std::vector<float> larger = {14.0f, -1.0f, 0.25f, 0.0f};
    const fp8::QuantizeMode first{.record_amax = true, .count = true}, recomputed{};
    EXPECT_EQ(bench.quantize(0, larger, 2, first), larger);  // exact with the scale of amax 14
    EXPECT_EQ(*bench.last_scale(0), limit / 14.0f);
    // The delayed scale is constant within a step: requantization of one microbatch does not affect another one.
    EXPECT_EQ(bench.scale(0), scale);
    EXPECT_EQ(bench.quantize(0, {7.0f, 0.125f}, 1, first), (std::vector<float>{7.0f, 0.125f}));
    EXPECT_EQ(*bench.last_scale(0), scale);
    EXPECT_EQ(bench.amax(0), 14.0f);
    EXPECT_EQ(bench.counters(0).saturated, 0u);
    EXPECT_EQ(bench.counters(0).total, 6u);
    // A recomputed pass gives the same values and does not change the state.
    EXPECT_EQ(bench.quantize(0, larger, 2, recomputed), larger);
    EXPECT_EQ(bench.quantize(0, {28.0f, 1.0f}, 1, recomputed), (std::vector<float>{28.0f, 1.0f}));
    EXPECT_EQ(bench.amax(0), 14.0f);
    EXPECT_EQ(bench.counters(0).total, 6u);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), limit / 14.0f);
    const std::vector<train::Fp8Health> health =
        train::read_fp8_health(bench.context(), bench.recipe().table());
    EXPECT_EQ(health[0].requantized, 0.5);
    EXPECT_EQ(health[0].saturated, 0.0);
  }
}

// For example a gradient that is zero until the weights after it have changed, or an expert without tokens.
TEST(DelayedRecipe, TheFirstTensorThatIsNotZeroHasItsCurrentScale) {
  for (const auto& [role, limit] :
       {std::pair{OperandRole::input, 448.0f}, {OperandRole::grad_output, 57344.0f}}) {
    Bench bench(precision(Fp8Mode::hybrid), 1, role);
    const std::vector<float> zeros(4), tiny = {0x1p-40f, -0x1p-41f, 0.0f, 0x1p-42f};
    EXPECT_EQ(bench.quantize(0, zeros, 2), zeros);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), fp8::kUnknownScale);
    EXPECT_TRUE(std::isnan(train::read_fp8_health(bench.context(), bench.recipe().table())[0].scale));
    EXPECT_EQ(bench.quantize(0, tiny, 2), tiny);
    EXPECT_EQ(*bench.last_scale(0), limit * 0x1p40f);
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), limit * 0x1p40f);
    for (int step = 0; step < 4; ++step)
      bench.recipe().update(bench.context(), nullptr);  // longer than the history
    EXPECT_EQ(bench.scale(0), limit * 0x1p40f);
  }
}

// Zeros have no scale after calibration. A weight, which may be frozen and quantized only once, keeps its scale.
TEST(DelayedRecipe, CalibrationForgetsScalesOfInputsOnly) {
  for (const auto& [role, scale] :
       {std::pair{OperandRole::input, fp8::kUnknownScale}, {OperandRole::weight, 1.0f}}) {
    Bench bench(precision(Fp8Mode::hybrid), 2, role);
    bench.recipe().begin_calibration(bench.context());
    bench.quantize(0, std::vector<float>(4), 2);
    bench.quantize(1, {7.0f, 1.0f}, 1, {});  // records no amax
    EXPECT_EQ(bench.scale(0), 1.0f);
    bench.recipe().end_calibration(bench.context());
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), scale);
    EXPECT_EQ(bench.scale(1), role == OperandRole::weight ? 64.0f : fp8::kUnknownScale);
  }
}

// An expert without tokens in a later calibration, the first FP8 step after BF16 steps.
TEST(DelayedRecipe, CalibrationWithZerosKeepsAKnownScale) {
  for (const bool recast : {true, false}) {
    PrecisionConfig config = precision(Fp8Mode::hybrid);
    config.fp8_recast = recast;
    config.amax_compute_algo = config::AmaxAlgo::most_recent;
    Bench bench(config, 1);
    bench.quantize(0, {7.0f, 1.0f}, 1);
    bench.recipe().update(bench.context(), nullptr);
    bench.recipe().begin_calibration(bench.context());
    bench.quantize(0, std::vector<float>(4), 2);
    bench.recipe().end_calibration(bench.context());
    bench.recipe().update(bench.context(), nullptr);
    EXPECT_EQ(bench.scale(0), 64.0f) << recast;
  }
}

TEST(DelayedRecipe, ASkippedStepDiscardsRequantization) {
  Bench bench(precision(Fp8Mode::hybrid), 1);
  bench.quantize(0, {7.0f, 1.0f}, 1);
  bench.recipe().update(bench.context(), nullptr);
  const int32_t skip = 1;
  bench.quantize(0, {99.0f, 1.0f}, 1);
  bench.recipe().update(bench.context(), &skip);
  EXPECT_EQ(bench.scale(0), 64.0f);
  EXPECT_EQ(bench.recipe().table().position.as<int32_t>()[0], 1);
  EXPECT_EQ(bench.quantize(0, {7.0f, 1.0f}, 1), (std::vector<float>{7.0f, 1.0f}));
  EXPECT_EQ(*bench.last_scale(0), 64.0f);
}

TEST(DelayedRecipe, SaturatesWithoutRequantize) {
  PrecisionConfig config = precision(Fp8Mode::hybrid);
  config.fp8_recast = false;
  Bench bench(config, 1);
  bench.quantize(0, {7.0f, 1.0f}, 1);
  bench.recipe().update(bench.context(), nullptr);
  EXPECT_EQ(bench.quantize(0, {14.0f, -1.0f}, 1), (std::vector<float>{7.0f, -1.0f}));
  EXPECT_FALSE(train::read_fp8_health(bench.context(), bench.recipe().table())[0].requantized.has_value());
}

// An operand with a kept scale is quantized with that scale in recomputed passes, even if the table's scale has
// changed: no amax is computed, and the bytes are those of the first pass.
TEST(Recipe, RecomputationUsesTheKeptScale) {
  for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    Bench bench(precision(Fp8Mode::hybrid, kind), 1);
    // 448 / 1000, or the power of two below.
    const float wanted = kind == Fp8Recipe::delayed ? 0.448f : 0.25f;
    Context& context = bench.context();
    TestTensor high_precision(context, DType::f32, {2, 2}), scale(context, DType::f32, {1});
    Storage first(context, DType::e4m3, 2, 2), again(context, DType::e4m3, 2, 2);
    high_precision.fill({1000.0f, -3.0f, 0.75f, 0.0f});  // beyond delayed's scale of 1
    fp8::Operand operand = first.operand();
    operand.scale = scale;
    bench.quantizer(0).complete(context, operand, {.high_precision = high_precision}, {.record_amax = true});
    EXPECT_EQ(scale.floats()[0], wanted);
    bench.quantize(0, {7.0f, 1.0f}, 1);
    const int64_t quantized = bench.recipe().table().count_quantizations(context).quantized;
    const float amax = bench.amax(0);
    operand = again.operand();
    operand.scale = scale;
    bench.quantizer(0).complete(context, operand, {.high_precision = high_precision}, {.is_recompute = true});
    EXPECT_TRUE(again == first);
    EXPECT_EQ(bench.recipe().table().count_quantizations(context).quantized, quantized);
    EXPECT_EQ(bench.amax(0), amax);
    EXPECT_EQ(scale.floats()[0], wanted);
  }
}

// Weights and calibration passes use current scales, which never overflow.
TEST(DelayedRecipe, DoesNotRequantizeWithCurrentScales) {
  Bench weight(precision(Fp8Mode::hybrid), 1, OperandRole::weight),
      calibrating(precision(Fp8Mode::hybrid), 1);
  calibrating.recipe().begin_calibration(calibrating.context());
  for (Bench* bench : {&weight, &calibrating}) {
    const std::vector<float> values = {14.0f, 0.25f};
    EXPECT_EQ(bench->quantize(0, values, 1, {.record_amax = true, .count = true}), values);
    EXPECT_EQ(bench->scale(0), 32.0f);
    EXPECT_EQ(bench->recipe().table().tensor_state_of(0)->quantized, 0u);
  }
}

TEST(Recipe, OnlyPredictedScalesNeedRequantization) {
  for (const Fp8Recipe kind : kAllRecipes)
    EXPECT_EQ(fp8::make_recipe(precision(Fp8Mode::hybrid, kind), 1)->requantizes(),
              kind == Fp8Recipe::delayed || kind == Fp8Recipe::tensorwise);
  PrecisionConfig config = precision(Fp8Mode::hybrid, Fp8Recipe::tensorwise);
  config.fp8_scale_format = config::Fp8ScaleFormat::fp32;  // cannot be predicted
  EXPECT_FALSE(fp8::make_recipe(config, 1)->requantizes());
  config = precision(Fp8Mode::off);
  config.fp8_calibrate = true;
  EXPECT_FALSE(fp8::make_recipe(config, 1)->requantizes());
  config = precision(Fp8Mode::hybrid, Fp8Recipe::blockwise);
  config.overrides = "linear_fc2: delayed";
  const auto mixed = fp8::make_recipe(config, 1);
  EXPECT_FALSE(mixed->requantizes());  // no operand uses the recipe yet
  mixed->quantizer({0, LinearKind::fc2}, OperandRole::input);
  EXPECT_TRUE(mixed->requantizes());
}

// --- fused quantization ------------------------------------------------------------------------------------

// The FP8 output of a producer and separate quantization of its high-precision output have the same bits, amax and
// counts.
TEST(DelayedRecipe, FusedAndSeparateQuantizationAgree) {
  constexpr int64_t kRows = 19, kCols = 48;
  PrecisionConfig saturating = precision(Fp8Mode::hybrid);
  saturating.fp8_recast = false;
  Bench bench(saturating, 2);
  Context& context = bench.context();
  TestTensor x(context, DType::bf16, {kRows, kCols}), gamma(context, DType::bf16, {kCols});
  x.fill_normal(1), gamma.fill_normal(2, 3.0f);
  const fp8::QuantizeMode mode{.record_amax = true, .count = true};

  const auto compare = [&](const auto& produce, int64_t cols) {
    bench.recipe().reset(context);
    // A scale with which some values saturate and some underflow.
    for (int i = 0; i < 2; ++i) bench.recipe().table().scale_of(i).as<float>()[0] = 300.0f;
    TestTensor high_precision(context, DType::bf16, {kRows, cols});
    Storage fused(context, DType::e4m3, kRows, cols), separate(context, DType::e4m3, kRows, cols);
    const fp8::ProducedOperand quantized =
        bench.quantizer(0).request(fused.operand(), mode).quantized_or_values(false);
    produce(quantized);
    bench.quantizer(0).complete(context, fused.operand(), quantized, mode);  // nothing left to compute
    produce({.high_precision = high_precision});
    bench.quantizer(1).complete(context, separate.operand(), {.high_precision = high_precision}, mode);
    EXPECT_TRUE(fused == separate);
    EXPECT_EQ(bench.amax(0), bench.amax(1));
    EXPECT_GT(bench.amax(0), 0.0f);
    EXPECT_EQ(bench.counters(0).saturated, bench.counters(1).saturated);
    EXPECT_EQ(bench.counters(0).flushed, bench.counters(1).flushed);
    EXPECT_EQ(bench.counters(0).total, static_cast<unsigned long long>(kRows * cols));
    EXPECT_EQ(bench.counters(1).total, static_cast<unsigned long long>(kRows * cols));
    EXPECT_GT(bench.counters(0).saturated, 0u);
  };
  compare(
      [&](const fp8::ProducedOperand& output) {
        TestTensor rstd(context, DType::f32, {kRows});
        kernels::NormForward args;
        args.kind = kernels::NormKind::rms;
        args.x = x, args.gamma = gamma, args.rstd = rstd, args.y = output.high_precision,
        args.y_fp8 = output.fp8;
        kernels::norm_forward(context, args);
      },
      kCols);
  compare(
      [&](const fp8::ProducedOperand& output) {
        kernels::activation_forward(context, {.kind = kernels::ActivationKind::swiglu,
                                              .x = x,
                                              .y = output.high_precision,
                                              .y_fp8 = output.fp8});
      },
      kCols / 2);
}

// --- health ------------------------------------------------------------------------------------------------

TEST(Fp8Health, ASpikeBeyondTheScaleIsCountedAndShown) {
  for (auto [role, limit] : {std::pair{OperandRole::input, 448.0f}, {OperandRole::grad_output, 57344.0f}}) {
    PrecisionConfig config = precision(Fp8Mode::hybrid);
    config.fp8_recast = false;
    Bench bench(config, 2, role);
    bench.quantize(0, std::vector<float>(8, 3.5f), 2);
    bench.recipe().update(bench.context(), nullptr);
    const fp8::QuantizeMode counting{.record_amax = true, .count = true};
    // 2 of 8 values are twice the history's amax: they become the largest FP8 number.
    const std::vector<float> back =
        bench.quantize(0, {3.5f, -7.0f, 0.0f, 1.75f, 7.0f, 0.0f, 3.5f, 1e-12f}, 2, counting);
    EXPECT_EQ(back, (std::vector<float>{3.5f, -3.5f, 0.0f, 1.75f, 3.5f, 0.0f, 3.5f, 0.0f}));
    EXPECT_EQ(bench.scale(0), limit / 3.5f);
    bench.recipe().update(bench.context(), nullptr);

    const std::vector<train::Fp8Health> health =
        train::read_fp8_health(bench.context(), bench.recipe().table());
    ASSERT_EQ(health.size(), 2u);
    EXPECT_EQ(health[0].name, "layers.0.self_attention.linear_qkv");
    EXPECT_EQ(health[0].role, role);
    EXPECT_EQ(health[0].amax, 7.0);
    EXPECT_EQ(health[0].scale, limit / 7.0f);
    EXPECT_EQ(health[0].saturated, 2.0 / 8);
    EXPECT_EQ(health[0].flushed, 1.0 / 8);         // 1e-12; zeros do not count
    EXPECT_TRUE(std::isnan(health[1].saturated));  // nothing was counted
    // The next record starts with zero counters.
    bench.recipe().table().zero_counters(bench.context());
    EXPECT_EQ(bench.counters(0).saturated, 0u);
    EXPECT_EQ(bench.counters(0).total, 0u);
  }
}

}  // namespace
}  // namespace te
