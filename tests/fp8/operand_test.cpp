// An operand from its producer to the GEMMs: each output is computed exactly once. Also trains a model with a recipe
// that the test defines, with a scale per row.
#include "fp8/operand.h"

#include <cmath>

#include "core/error.h"
#include "core/float_types.h"
#include "fp8/recipe.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize/quantize.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Fp8Mode;
using config::Fp8Recipe;
using config::PrecisionConfig;
using fp8::ColumnSums;
using fp8::Operand;
using fp8::OperandRole;
using fp8::Output;
using fp8::Quantizer;
using fp8::Target;
using testing::TestTensor;

/// A grad_output operand of a recipe with its memory.
class Gradient {
 public:
  explicit Gradient(Fp8Recipe kind, Fp8Mode mode = Fp8Mode::hybrid)
      : recipe_(fp8::make_recipe({.fp8 = mode, .fp8_recipe = kind}, 1)),
        quantizer_(recipe_->quantizer({0, LinearKind::qkv}, OperandRole::grad_output)) {
    recipe_->plan(plan_);
    plan_.add(operand.high_precision, "hp", MemoryKind::activations, DType::bf16, {kRows, kCols});
    quantizer_.plan(plan_, operand, {.name = "operand", .rows = kRows, .cols = kCols});
    memory_ = plan_.allocate(context);
    recipe_->reset(context);
    high_precision_.fill_normal(1);
    context.copy(operand.high_precision, high_precision_);
    sums_.fill_value(0.0f);
  }
  Target target() { return quantizer_.target(operand, {}, {sums_, scratch_}); }
  void complete() { quantizer_.complete(context, operand, {}, {sums_, scratch_}); }
  /// How many times the bias gradient was added, from the first column.
  long times_summed() const {
    float sum = 0;
    for (int64_t r = 0; r < kRows; ++r) sum += high_precision_.floats()[static_cast<size_t>(r * kCols)];
    return std::lround(sums_.floats()[0] / sum);
  }
  void produce(const Output& output) {
    kernels::quantize(
        context,
        {.x = operand.high_precision, .out = output.fp8, .dbias = output.sums.into, .scratch = scratch_});
  }

  static constexpr int64_t kRows = 16, kCols = 32;
  Context context = Context::cpu();
  Operand operand;

 private:
  std::unique_ptr<fp8::Recipe> recipe_;
  Quantizer quantizer_;
  MemoryPlan plan_;
  DeviceBuffer memory_;
  TestTensor high_precision_{context, DType::bf16, {kRows, kCols}}, sums_{context, DType::f32, {kCols}},
      scratch_{context, DType::f32, {kernels::quantize_scratch_elements(kRows, kCols)}};
};

TEST(Operand, OutputsOfTheProducerAreNotComputedAgain) {
  for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    Gradient gradient(kind);
    const Output output = gradient.target().cast_and_sums();
    EXPECT_FALSE(output.high_precision);
    ASSERT_TRUE(output.fp8.wants_data());
    gradient.produce(output);
    gradient.complete();
    EXPECT_EQ(gradient.times_summed(), 1);
  }
}

TEST(Operand, OtherOutputsAreCompleted) {
  for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::tensorwise}) {
    Gradient gradient(kind);
    EXPECT_TRUE(gradient.target().values());
    gradient.complete();
    EXPECT_EQ(gradient.times_summed(), 1);
    EXPECT_NO_THROW(fp8::wgrad(gradient.operand, gradient.operand));
  }
}

TEST(Operand, ProducersQuantizeOnlyWithOneScalePerTensor) {
  Gradient gradient(Fp8Recipe::blockwise);
  const Output output = gradient.target().cast_and_sums();
  EXPECT_TRUE(output.high_precision);
  EXPECT_FALSE(output.fp8);
  gradient.produce({.high_precision = output.high_precision, .sums = output.sums});
  gradient.complete();
  EXPECT_EQ(gradient.times_summed(), 1);
}

// Column sums of FP8 values are not exact enough for a bias gradient.
TEST(Operand, AProducerThatCannotSumDoesNotQuantizeIfSumsAreNeeded) {
  Gradient gradient(Fp8Recipe::delayed);
  const Output output = gradient.target().cast();
  EXPECT_TRUE(output.high_precision);
  EXPECT_FALSE(output.fp8);
}

TEST(Operand, EachPassMustProduceIt) {
  Gradient gradient(Fp8Recipe::delayed);
  gradient.produce(gradient.target().cast_and_sums());
  gradient.complete();
  EXPECT_NO_THROW(fp8::wgrad(gradient.operand, gradient.operand));
  (void)gradient.target();  // starts another pass; the FP8 values are those of the last pass
  EXPECT_THROW(fp8::wgrad(gradient.operand, gradient.operand), InternalError);
  EXPECT_THROW(gradient.complete(), InternalError);  // no producer has written it
}

// --- a recipe of the test ----------------------------------------------------------------------------------

/// E4M3 and E5M2 with a scale per row of each layout: per token for y = x W^T, per channel for wgrad.
class RowScales final : public fp8::Recipe {
 public:
  RowScales(const PrecisionConfig& precision, int layers) : Recipe(precision, layers) {}
  const char* name() const override { return "row scales"; }
  bool quantizes() const override { return true; }
  // A column's scale needs all tokens.
  bool gathers_quantized(const parallel::TensorParallel&, int64_t) const override { return false; }
  kernels::ScaleLayout scale_layout(OperandRole) const override { return kernels::ScaleLayout::rows; }

 protected:
  void cast(const Context& context, int, Operand& operand, fp8::QuantizeMode mode,
            const ColumnSums& sums) override {
    const int64_t rows = operand.high_precision.rows(), cols = operand.high_precision.cols();
    const auto* x = operand.high_precision.as<bfloat16>();
    if (operand.rowwise)
      quantize(operand.rowwise, rows, cols, [&](int64_t r, int64_t c) { return to_float(x[r * cols + c]); });
    if (mode.columnwise && operand.columnwise)
      quantize(operand.columnwise, cols, rows,
               [&](int64_t r, int64_t c) { return to_float(x[c * cols + r]); });
    if (sums.into) kernels::bias_gradient(context, operand.high_precision, sums.into, sums.scratch);
  }

 private:
  template <class Value>
  static void quantize(const kernels::Matrix& out, int64_t rows, int64_t cols, Value&& value) {
    const float largest = fp8_max(out.dtype());
    for (int64_t r = 0; r < rows; ++r) {
      float amax = 0;
      for (int64_t c = 0; c < cols; ++c) amax = std::max(amax, std::abs(value(r, c)));
      const float scale = amax > 0 ? largest / amax : 1.0f;
      out.scales.as<float>()[r] = 1.0f / scale;
      for (int64_t c = 0; c < cols; ++c) {
        visit_fp8(out.dtype(), [&](auto zero) {
          using T = decltype(zero);
          out.values.as<T>()[r * cols + c] = from_float<T>(value(r, c) * scale);
        });
      }
    }
  }
};

config::Config tiny(config::Family family) {
  config::Config config = testing::tiny_config(family);
  config.precision.dtype = config::ComputeDType::bf16;
  return config;
}

TEST(Recipe, ARecipeOfTheTestTrainsAModel) {
  for (const auto family : {config::Family::gpt, config::Family::llama}) {
    for (const auto recompute :
         {config::Recompute::none, config::Recompute::selective, config::Recompute::full}) {
      config::Config config = tiny(family);
      config.training.recompute = recompute;
      testing::TinyModel plain(config);
      config.precision.fp8 = Fp8Mode::hybrid;
      config.precision.fp8_recipe = Fp8Recipe::tensorwise;
      const int layers = static_cast<int>(config.model.num_layers);
      testing::TinyModel rows(config, std::make_unique<RowScales>(config.precision, layers)), tensor(config);
      plain.forward_backward(), rows.forward_backward(), tensor.forward_backward();
      const auto exact = plain.read(plain.model().parameters().grads);
      const auto error = [&](testing::TinyModel& model) {
        const auto gradients = model.read(model.model().parameters().grads);
        double sum = 0;
        for (size_t i = 0; i < exact.size(); ++i) sum += std::pow(gradients[i] - exact[i], 2);
        return std::sqrt(sum);
      };
      EXPECT_GT(error(rows), 0.0);                   // it differs from the BF16 model
      EXPECT_LT(error(rows), 1.05 * error(tensor));  // but not more than with one scale per tensor
      EXPECT_NE(error(rows), error(tensor));
    }
  }
}

}  // namespace
}  // namespace te
