// An operand from its producer to the GEMMs: each output is computed exactly once. Also trains a model with a recipe
// that the test defines, with a scale per row.
#include "fp8/operand.h"

#include <cmath>
#include <deque>

#include "core/error.h"
#include "core/float_types.h"
#include "fp8/recipe.h"
#include "kernels/quantize/quantize.h"
#include "model/linear.h"
#include "model/tiny_model.h"
#include "testing/testing.h"

namespace te {
namespace {

using config::Fp8Mode;
using config::Fp8Recipe;
using config::PrecisionConfig;
using fp8::Operand;
using fp8::OperandRequest;
using fp8::OperandRole;
using fp8::ProducedOperand;
using fp8::Quantizer;
using fp8::ReadyOperand;
using testing::TestTensor;

// GEMMs take nothing but a complete operand.
template <class T>
concept GemmsTake = requires(const T& operand, const ReadyOperand& other) {
  model::fprop(operand, other, 0, 1);
  model::dgrad(operand, other, 0, 1);
  model::wgrad(operand, other);
};
static_assert(GemmsTake<ReadyOperand>);
static_assert(!GemmsTake<Operand> && !GemmsTake<OperandRequest> && !GemmsTake<ProducedOperand>);

/// A grad_output operand of a recipe with its memory.
class Gradient {
 public:
  explicit Gradient(Fp8Recipe kind, Fp8Mode mode = Fp8Mode::hybrid)
      : recipe_(fp8::make_recipe({.fp8 = mode, .fp8_recipe = kind}, 1)),
        quantizer_(recipe_->quantizer({0, LinearKind::qkv}, OperandRole::grad_output)) {
    recipe_->plan(plan_);
    plan_.add({operand, operand.high_precision}, "high_precision", MemoryKind::activations, DType::bf16,
              {kRows, kCols});
    quantizer_.plan(plan_, operand, {.name = "operand", .rows = kRows, .cols = kCols});
    memory_ = plan_.allocate(context);
    recipe_->reset(context);
    high_precision_.fill_normal(1);
    context.copy(operand.high_precision, high_precision_);
    sums_.fill_value(0.0f);
  }
  OperandRequest request() { return quantizer_.request(operand, {}, {sums_, scratch_}); }
  ReadyOperand complete(const ProducedOperand& produced) {
    return quantizer_.complete(context, operand, produced, {}, {sums_, scratch_});
  }
  /// How many times the bias gradient was added, from the first column.
  long times_summed() const {
    float sum = 0;
    for (int64_t r = 0; r < kRows; ++r) sum += high_precision_.floats()[static_cast<size_t>(r * kCols)];
    return std::lround(sums_.floats()[0] / sum);
  }
  ProducedOperand produce(const ProducedOperand& output) {
    kernels::quantize(
        context,
        {.x = operand.high_precision, .out = output.fp8, .dbias = output.sums.into, .scratch = scratch_});
    return output;
  }

  static constexpr int64_t kRows = 16, kCols = 32;
  Context context = Context::cpu();
  Planned<Operand> operand;

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
    const ProducedOperand output = gradient.request().quantized_or_values(true);
    EXPECT_FALSE(output.high_precision);
    ASSERT_TRUE(output.fp8.wants_data());
    const ReadyOperand ready = gradient.complete(gradient.produce(output));
    EXPECT_EQ(gradient.times_summed(), 1);
    EXPECT_TRUE(ready.rowwise && ready.columnwise);
    EXPECT_FALSE(ready.high_precision);
  }
}

TEST(Operand, OtherOutputsAreCompleted) {
  for (const Fp8Recipe kind : {Fp8Recipe::delayed, Fp8Recipe::tensorwise, Fp8Recipe::blockwise}) {
    Gradient gradient(kind);
    const ReadyOperand ready = gradient.complete({.high_precision = gradient.request().high_precision});
    EXPECT_EQ(gradient.times_summed(), 1);
    const kernels::Gemm gemm = model::wgrad(ready, ready);
    EXPECT_EQ(gemm.a.values.data, gradient.operand.columnwise.values.data);
  }
}

TEST(Operand, ValuesInTheProducersMemoryAreKept) {
  Gradient gradient(Fp8Recipe::delayed);
  const Tensor own = gradient.operand.high_precision;
  const ReadyOperand ready = gradient.complete(gradient.produce(gradient.request().in_addition_to(own)));
  EXPECT_EQ(gradient.times_summed(), 1);
  EXPECT_EQ(ready.high_precision.data, own.data);
  EXPECT_TRUE(ready.rowwise && ready.columnwise);
}

TEST(Operand, ProducersQuantizeOnlyWithOneScalePerTensor) {
  Gradient gradient(Fp8Recipe::blockwise);
  const ProducedOperand output = gradient.request().quantized_or_values(true);
  EXPECT_TRUE(output.high_precision);
  EXPECT_FALSE(output.fp8);
  gradient.complete(gradient.produce(output));
  EXPECT_EQ(gradient.times_summed(), 1);
}

// Column sums of FP8 values are not exact enough for a bias gradient.
TEST(Operand, AProducerThatCannotSumDoesNotQuantizeIfSumsAreNeeded) {
  Gradient gradient(Fp8Recipe::delayed);
  const ProducedOperand output = gradient.request().quantized_or_values(false);
  EXPECT_TRUE(output.high_precision);
  EXPECT_FALSE(output.fp8);
  // A producer that violates that is detected.
  EXPECT_THROW(gradient.complete({.fp8 = gradient.request().fp8}), InternalError);
}

TEST(Operand, WhatWasNotProducedIsRefused) {
  Gradient gradient(Fp8Recipe::delayed);
  EXPECT_THROW(gradient.complete({}), InternalError);
  EXPECT_THROW(model::fprop(ReadyOperand{}, ReadyOperand{}, 0, 1), InternalError);
}

// An operand has exactly the layouts that its pass requested, so GEMMs cannot read those of an earlier pass.
TEST(Operand, HasTheLayoutsThatThePassRequested) {
  const auto recipe = fp8::make_recipe({.fp8 = Fp8Mode::hybrid, .fp8_recipe = Fp8Recipe::tensorwise}, 1);
  const Quantizer quantizer = recipe->quantizer({0, LinearKind::fc1}, OperandRole::input);
  const Context context = Context::cpu();
  MemoryPlan plan;
  Planned<Operand> operand;
  recipe->plan(plan);
  plan.add({operand, operand.high_precision}, "high_precision", MemoryKind::activations, DType::bf16,
           {16, 16});
  quantizer.plan(plan, operand, {.name = "operand", .rows = 16, .cols = 16});
  recipe->keep_high_precision();
  const DeviceBuffer memory = plan.allocate(context);
  recipe->reset(context);
  const ProducedOperand values{.high_precision = operand.high_precision};
  ReadyOperand ready = quantizer.complete(context, operand, values, {.columnwise = false});
  EXPECT_TRUE(ready.rowwise && !ready.columnwise);
  quantizer.add_columnwise(context, operand, ready, true);
  EXPECT_TRUE(ready.rowwise && ready.columnwise);
  ready = quantizer.complete(context, operand, values, {.rowwise = false});
  EXPECT_TRUE(!ready.rowwise && ready.columnwise);
  recipe->set_high_precision(true);
  ready = quantizer.complete(context, operand, values, {});
  quantizer.add_rowwise(context, operand, ready);
  EXPECT_TRUE(ready.high_precision && !ready.rowwise && !ready.columnwise);
}

// Scales of vectors are a 32nd of their values' memory.
TEST(Operand, LayersShareTheMemoryOfValuesAndTheirScales) {
  enum class Tag : uint8_t { operand };
  const auto recipe = fp8::make_recipe({.fp8 = Fp8Mode::hybrid, .fp8_recipe = Fp8Recipe::blockwise}, 4);
  const auto bytes = [&](int layers) {
    MemoryPlan plan;
    std::deque<Planned<Operand>> operands;
    for (int layer = 0; layer < layers; ++layer)
      recipe->quantizer({layer, LinearKind::fc1}, OperandRole::grad_output)
          .plan(plan, operands.emplace_back(),
                {.name = fmt::format("layers.{}", layer),
                 .rows = 256,
                 .cols = 128,
                 .tag = Tag::operand,
                 .rowwise = Lifetime(0, 1),
                 .columnwise = Lifetime(1, 2)});
    return plan.total_bytes();
  };
  EXPECT_EQ(bytes(4), bytes(1));
}

// The activation of experts writes what complete() would: columnwise values in blocks of rows, if no statistics need
// the values.
TEST(Operand, ProducersOfExpertsAreAskedForWhatIsCompleted) {
  const auto recipe = fp8::make_recipe({.fp8 = Fp8Mode::hybrid, .fp8_recipe = Fp8Recipe::blockwise}, 2);
  const Quantizer quantizer =
      recipe->quantizer({0, LinearKind::fc2}, OperandRole::input, GradientGroup::dense, true, 2);
  const Context context = Context::cpu();
  const int64_t rows = 384, cols = 128;
  MemoryPlan plan;
  Planned<Operand> operand;
  recipe->plan(plan);
  quantizer.plan(plan, operand, {.name = "operand", .rows = rows, .cols = cols});
  const DeviceBuffer memory = plan.allocate(context);
  recipe->reset(context);
  TestTensor x(context, DType::bf16, {rows, cols}), offsets(context, DType::i32, {3});
  x.fill_normal(1), offsets.fill_ints({0, 256, 384});
  const auto written = [&] {
    std::vector<uint8_t> bytes;
    for (const Tensor& tensor : {operand.rowwise.values, operand.rowwise.scales, operand.columnwise.values,
                                 operand.columnwise.scales}) {
      const auto* const data = tensor.as<uint8_t>();
      bytes.insert(bytes.end(), data, data + tensor.bytes());
    }
    return bytes;
  };
  Operand of_experts = operand;
  of_experts.offsets = offsets;
  quantizer.complete(context, of_experts, {.high_precision = x}, {});
  const std::vector<uint8_t> completed = written();
  fp8::ExpertsRequest request = quantizer.experts_request(operand, {});
  ASSERT_TRUE(request);
  context.zero(operand.columnwise.values);
  request.groups.x = x;
  kernels::quantize_groups(context, request.groups);
  EXPECT_EQ(written(), completed);
  EXPECT_FALSE(quantizer.experts_request(operand, {.count = true}));
}

// --- a recipe of the test ----------------------------------------------------------------------------------

/// E4M3 and E5M2 with a scale per row of each layout: per token for y = x W^T, per channel for wgrad.
class RowScales final : public fp8::Scaling {
 public:
  RowScales() : Scaling(false) {}
  kernels::ScaleLayout layout(OperandRole) const override { return kernels::ScaleLayout::rows; }
  void quantize(const Context&, const fp8::GroupedOperand& operand) const override {
    const kernels::QuantizeGroups& args = operand.groups;
    const int64_t rows = args.x.rows(), cols = args.x.cols();
    const auto* x = args.x.as<bfloat16>();
    if (args.rowwise)
      quantize(args.rowwise, rows, cols, [&](int64_t r, int64_t c) { return to_float(x[r * cols + c]); });
    if (args.columnwise)
      quantize(args.columnwise, cols, rows, [&](int64_t r, int64_t c) { return to_float(x[c * cols + r]); });
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
      testing::TinyModel rows(
          config, std::make_unique<fp8::Recipe>(config.precision, layers, std::make_unique<RowScales>())),
          tensor(config);
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
