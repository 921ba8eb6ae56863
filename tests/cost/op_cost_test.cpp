// What an observer of ops receives: names, labels, FLOPs and bytes.
#include "cost/op_cost.h"

#include "kernels/attention/attention.h"
#include "kernels/dropout/dropout.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm_activation_cases.h"
#include "kernels/muon/muon.h"
#include "kernels/muon_cases.h"
#include "kernels/norm/norm.h"
#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_groups.h"
#include "kernels/rearrange/rearrange.h"
#include "testing/testing.h"

namespace te::cost {
namespace {

using namespace kernels;

using te::testing::TestTensor;

class Listener final : public OpObserver {
 public:
  explicit Listener(bool installed = true) : installed_(installed) {
    if (installed_) install(this);
  }
  ~Listener() override {
    if (installed_) install(nullptr);
  }
  void begin(const Context&, OpCall call) override {
    calls.push_back(std::move(call));
    ++open;
  }
  void end(const Context&) override { --open; }
  std::vector<OpCall> calls;
  int open = 0;

 private:
  bool installed_;
};

TEST(OpCost, OfAGemm) {
  const Context cpu = Context::cpu();
  TestTensor a(cpu, DType::bf16, {32, 16}), b(cpu, DType::bf16, {48, 16}), out(cpu, DType::f32, {32, 48});
  for (TestTensor* tensor : {&a, &b, &out}) tensor->fill_value(1.0f);
  Listener listener;
  gemm(cpu, {.a = a, .b = b, .out = out, .trans_b = true});
  gemm(cpu, {.a = a, .b = b, .out = out, .trans_b = true, .accumulate = true});
  ASSERT_EQ(listener.calls.size(), 2u);
  EXPECT_STREQ(listener.calls[0].name, "gemm");
  EXPECT_EQ(listener.calls[0].label, "");
  EXPECT_EQ(op_cost(listener.calls[0]).flops, 2.0 * 32 * 48 * 16);
  const double operands = 2.0 * (32 * 16 + 48 * 16), result = 4.0 * 32 * 48;
  EXPECT_EQ(op_cost(listener.calls[0]).bytes, operands + result);
  EXPECT_EQ(op_cost(listener.calls[1]).bytes, operands + 2 * result);
  EXPECT_NE(std::any_cast<Gemm>(&listener.calls[0].args), nullptr);
  EXPECT_EQ(listener.open, 0);
}

// Five iterations of 4 n^2 m + 2 n^3 FLOPs (docs/explanation/architecture.md), whichever side is longer.
TEST(OpCost, OfNewtonSchulzAndTheStepsAroundIt) {
  const Context cpu = Context::cpu();
  for (const testing::MatrixShape& shape : {testing::MatrixShape{12, 20}, {20, 12}}) {
    Listener listener;
    testing::orthogonalized(cpu, DType::bf16, shape, testing::normal_values(240, 1));
    double flops = 0;
    for (const OpCall& call : listener.calls) flops += op_cost(call).flops;
    EXPECT_EQ(flops, 5.0 * (4 * 12 * 12 * 20 + 2 * 12 * 12 * 12));
  }
  TestTensor grad(cpu, DType::bf16, {10}), momentum(cpu, DType::f32, {10}), update(cpu, DType::bf16, {10});
  TestTensor main(cpu, DType::f32, {10}), param(cpu, DType::bf16, {10}), whole(cpu, DType::bf16, {4, 5});
  for (TestTensor* tensor : {&grad, &momentum, &update, &main, &whole}) tensor->fill_value(1.0f);
  const ParameterRegion region{.local_cols = 5, .global_cols = 5};
  Listener listener;
  muon_momentum(cpu, {.main_grad = grad, .momentum = momentum, .update = update});
  muon_place(cpu, {.part = update, .full = whole, .region = region});
  muon_update(cpu, {.main_param = main, .param = param, .orthogonal = whole, .region = region});
  ASSERT_EQ(listener.calls.size(), 3u);
  EXPECT_EQ(op_cost(listener.calls[0]).bytes, 10.0 * (2 + 4 + 4 + 2));
  EXPECT_EQ(op_cost(listener.calls[1]).bytes, 10.0 * (2 + 2));
  EXPECT_EQ(op_cost(listener.calls[2]).bytes, 10.0 * (4 + 4 + 2 + 2));
}

// One operation each, regardless of how many kernels it uses.
TEST(OpCost, OfAGemmWithAnActivation) {
  const Context cpu = Context::cpu();
  const testing::GemmActivationOperands tensors(cpu, {ActivationKind::swiglu, DType::bf16, 32, 24, 16, true});
  Listener listener;
  gemm_activation_forward(cpu, tensors.forward());
  gemm_activation_backward(cpu, tensors.backward());
  ASSERT_EQ(listener.calls.size(), 2u);
  EXPECT_STREQ(listener.calls[0].name, "gemm_activation_forward");
  EXPECT_EQ(op_cost(listener.calls[0]).flops, 2.0 * 32 * 48 * 16);
  EXPECT_EQ(op_cost(listener.calls[0]).bytes, 2.0 * (32 * 16 + 48 * 16 + 48 + 32 * 48 + 32 * 24));
  EXPECT_NE(std::any_cast<GemmActivationForward>(&listener.calls[0].args), nullptr);
  EXPECT_STREQ(listener.calls[1].name, "gemm_activation_backward");
  EXPECT_EQ(op_cost(listener.calls[1]).flops, 2.0 * 32 * 24 * 16);
  EXPECT_EQ(op_cost(listener.calls[1]).bytes, 2.0 * (32 * 16 + 16 * 24 + 2 * 32 * 48));
  EXPECT_NE(std::any_cast<GemmActivationBackward>(&listener.calls[1].args), nullptr);
  EXPECT_EQ(listener.open, 0);
}

TEST(OpCost, OfTensorsAndQuantization) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::bf16, {32, 16}), y(cpu, DType::bf16, {32, 16}), scale(cpu, DType::f32, {1});
  TestTensor rows(cpu, DType::e4m3, {32, 16}), columns(cpu, DType::e4m3, {16, 32});
  for (TestTensor* tensor : {&x, &scale}) tensor->fill_value(1.0f);
  Listener listener;
  add(cpu, x, x, y);
  Quantize args{.x = x};
  args.out.rowwise = rows;
  args.out.columnwise = columns;
  args.out.scale = scale.get().as<float>();
  quantize(cpu, args);
  ASSERT_EQ(listener.calls.size(), 2u);
  EXPECT_EQ(op_cost(listener.calls[0]).bytes, 3.0 * 2 * 32 * 16);
  EXPECT_STREQ(listener.calls[1].name, "quantize");
  EXPECT_EQ(op_cost(listener.calls[1]).bytes, (2.0 + 1 + 1) * 32 * 16);
  EXPECT_FALSE(listener.calls[0].args.has_value());
}

TEST(OpCost, OfANormsBackwardPass) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::bf16, {32, 16}), mean(cpu, DType::f32, {32}), gain(cpu, DType::f32, {16});
  TestTensor rows(cpu, DType::e5m2, {32, 16}), columns(cpu, DType::e5m2, {16, 32});
  NormBackward args{.dy = x, .x = x, .mean = mean, .rstd = mean, .dresidual = x, .dx = x, .dbias = gain};
  const double plain = 4.0 * 2 * 32 * 16 + 2.0 * 4 * 32;
  EXPECT_EQ(op_cost(std::any(args)).bytes, plain);
  args.dx_fp8.rowwise = rows;
  args.dx_fp8.columnwise = columns;
  EXPECT_EQ(op_cost(std::any(args)).bytes, plain + 2.0 * 32 * 16);
}

TEST(OpCost, OfCausalAttention) {
  AttentionForward forward;
  forward.shape = {.batch = 2, .seq = 64, .num_heads = 4, .num_query_groups = 4, .head_dim = 32};
  // Two GEMMs, each over half of the scores.
  EXPECT_EQ(op_cost(std::any(forward)).flops, 2.0 * 2 * (2.0 * 4 * 64 * 64 * 32) / 2);
  AttentionBackward backward;
  backward.shape = forward.shape;
  EXPECT_EQ(op_cost(std::any(backward)).flops, 2.5 * op_cost(std::any(forward)).flops);
}

TEST(OpCost, OfQueryRangesAddsUpToTheWhole) {
  for (const int64_t window : {0, 10, 40}) {
    AttentionForward args;
    args.shape = {
        .batch = 2, .seq = 64, .num_heads = 4, .num_query_groups = 2, .head_dim = 32, .window = window};
    const double whole = op_cost(std::any(args)).flops;
    double runs = 0;
    for (int64_t position = 0; position < 64; position += 16) {
      args.shape.range = {.count = 16, .position = position, .rows = 32, .first = 0};
      runs += op_cost(std::any(args)).flops;
    }
    EXPECT_EQ(runs, whole) << window;
  }
}

TEST(OpCost, OfCopiesThatRearrange) {
  const Context cpu = Context::cpu();
  TestTensor whole(cpu, DType::bf16, {8, 64}), parts(cpu, DType::bf16, {2, 8, 16}),
      index(cpu, DType::i32, {8});
  EXPECT_EQ(op_cost(std::any(ColumnChunks{whole, parts, 0, 0, 16})).bytes, 2.0 * 2 * 8 * 16 * 2);
  EXPECT_EQ(op_cost(std::any(CopyBlock{whole.get().view({2, 4, 64}), parts, 1, 0, 0, 3})).bytes,
            2.0 * 2 * 3 * 16 * 2);
  EXPECT_EQ(op_cost(std::any(RowNumbers{.numbers = index, .columns = index})).bytes, 2 * 8 * 4);
  EXPECT_EQ(op_cost(std::any(RowOrder{whole, index, whole})).bytes, 2.0 * 8 * 64 * 2 + 8 * 4);
}

// Two layouts of 64 x 256 values with their scales, one per row and 128 columns of each layout.
TEST(OpCost, OfQuantizationWithGroupScales) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::bf16, {64, 256}), rows(cpu, DType::e4m3, {64, 256}),
      columns(cpu, DType::e4m3, {256, 64});
  TestTensor row_scales(cpu, DType::f32, {2, 64}), column_scales(cpu, DType::f32, {1, 256});
  const QuantizeGroups args{.x = x,
                            .rowwise = {rows, row_scales, ScaleLayout::vectors},
                            .columnwise = {columns, column_scales, ScaleLayout::vectors}};
  EXPECT_EQ(op_cost(std::any(args)).bytes, 64 * 256 * (2 + 1 + 1) + 4 * (2 * 64 + 256));
  TestTensor tokens(cpu, DType::bf16, {16, 256}), source(cpu, DType::i32, {64});
  QuantizeGroups copies = args;
  copies.x = tokens, copies.source = source, copies.topk = 4;
  EXPECT_EQ(op_cost(std::any(copies)).bytes, 16 * 256 * 2 + 64 * 4 + 64 * 256 * (1 + 1) + 4 * (2 * 64 + 256));
}

TEST(OpCost, OfUnknownArguments) {
  EXPECT_THROW(op_cost(std::any(3)), InternalError);
  EXPECT_EQ(op_cost(OpCall{.name = "copy", .label = "", .cost = {.bytes = 8}, .args = {}}).bytes, 8);
}

// A tracing context reports every operation to its own observer and executes none.
TEST(TracingContext, ReportsOperationsWithoutExecution) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::f32, {16}), y(cpu, DType::f32, {16});
  x.fill_value(1.0f);
  y.fill_value(2.0f);
  Listener listener(false);
  const Context tracing = Context::trace(listener);
  const DeviceBuffer memory(tracing, 64 * 64 * 3 * sizeof(uint16_t));
  const auto tensor = [&](int64_t index, Shape shape) {
    return Tensor{static_cast<uint16_t*>(memory.data()) + index * 64 * 64, DType::bf16, shape};
  };
  {
    const ProfileLabel label("layers.3.mlp.linear_fc1");
    fill_value(tracing, x, 3.0f);
    tracing.copy(y, x);
    tracing.side().zero(y);
    gemm(tracing,
         {.a = tensor(0, {64, 32}), .b = tensor(1, {48, 32}), .out = tensor(2, {64, 48}), .trans_b = true});
  }
  ASSERT_EQ(listener.calls.size(), 4u);
  EXPECT_STREQ(listener.calls[1].name, "copy");
  EXPECT_EQ(op_cost(listener.calls[3]).flops, 2.0 * 64 * 48 * 32);
  EXPECT_EQ(listener.calls[3].label, "linear_fc1");
  EXPECT_EQ(listener.open, 0);
  EXPECT_EQ(x.floats()[0], 1.0f);
  EXPECT_EQ(y.floats()[0], 2.0f);
}

// Tracing is a property of a context, not of the process: others execute, and report to the installed observer.
TEST(TracingContext, LeavesOtherContextsAlone) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::f32, {16});
  Listener installed, traced(false);
  const Context tracing = Context::trace(traced);
  EXPECT_TRUE(cpu.executes() && !tracing.executes() && !tracing.is_cuda());
  fill_value(cpu, x, 3.0f);
  fill_value(tracing, x, 4.0f);
  EXPECT_EQ(installed.calls.size(), 1u);
  EXPECT_EQ(traced.calls.size(), 1u);
  EXPECT_EQ(x.floats()[0], 3.0f);
}

TEST(ProfileLabel, NestsAndKeepsTheLastPartOfAName) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::f32, {16});
  const ProfileLabel before("no observer");
  Listener listener;
  {
    const ProfileLabel outer("layers.3.mlp.linear_fc1", "fprop");
    fill_value(cpu, x, 0.0f);
    const ProfileLabel inner("again");
    fill_value(cpu, x, 0.0f);
  }
  fill_value(cpu, x, 0.0f);
  ASSERT_EQ(listener.calls.size(), 3u);
  EXPECT_EQ(listener.calls[0].label, "linear_fc1 fprop");
  EXPECT_EQ(listener.calls[1].label, "linear_fc1 fprop again");
  EXPECT_EQ(listener.calls[2].label, "");
}

TEST(ProfileScope, ReportsOnlyTheOutermostOperation) {
  const Context cpu = Context::cpu();
  TestTensor x(cpu, DType::f32, {16});
  Listener listener;
  {
    const ProfileScope whole(cpu, "exchange", 64.0);
    fill_value(cpu, x, 0.0f);
    const ProfileScope nothing(cpu, nullptr, 1.0);
  }
  fill_value(cpu, x, 0.0f);
  ASSERT_EQ(listener.calls.size(), 2u);
  EXPECT_STREQ(listener.calls[0].name, "exchange");
  EXPECT_EQ(op_cost(listener.calls[0]).bytes, 64.0);
  EXPECT_STREQ(listener.calls[1].name, "fill_value");
  EXPECT_EQ(listener.open, 0);
}

}  // namespace
}  // namespace te::cost
