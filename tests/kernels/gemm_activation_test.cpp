// A GEMM with an activation against a separate GEMM and activation.
#include "kernels/gemm/gemm_activation.h"

#include "kernels/fp8_storage.h"
#include "kernels/gemm_activation_cases.h"
#include "kernels/gemm_activation_fp8_cases.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::GemmActivationCase;
using te::testing::GemmActivationOperands;
using te::testing::TestTensor;

std::vector<GemmActivationCase> cases() {
  std::vector<GemmActivationCase> all;
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {129, 257, 33}, {300, 48, 96}};
  for (const auto& [m, ffn, k] : sizes)
    for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu,
                                      ActivationKind::swiglu_clamped, ActivationKind::geglu})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool bias : {false, true}) all.push_back({kind, dtype, m, ffn, k, bias});
  return all;
}

TEST(GemmActivation, MatchesSeparateGemmAndActivation) {
  const Context context = Context::cpu();
  for (const GemmActivationCase& c : cases()) {
    SCOPED_TRACE(c.name());
    GemmActivationOperands two(context, c), one(context, c);
    two.forward_in_two_steps(context);
    gemm_activation_forward(context, one.forward());
    EXPECT_EQ(count_different(one.out.raw(), two.out.raw(), dtype_size(c.dtype)), 0);
    EXPECT_EQ(count_different(one.y.raw(), two.y.raw(), dtype_size(c.dtype)), 0);
    two.backward_in_two_steps(context);
    gemm_activation_backward(context, one.backward());
    EXPECT_EQ(count_different(one.dx.raw(), two.dx.raw(), dtype_size(c.dtype)), 0);
    EXPECT_EQ(one.dbias.floats(), two.dbias.floats());
    gemm_activation_backward(context, one.backward_and_y());
    EXPECT_EQ(count_different(one.recomputed_y.raw(), two.y.raw(), dtype_size(c.dtype)), 0);
  }
}

TEST(GemmActivation, Fp8MatchesSeparateGemmAndQuantizingActivation) {
  const Context context = Context::cpu();
  for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu}) {
    for (const bool bias : {false, true}) {
      const te::testing::Fp8ActivationOperands one(context, {kind, 48, 112, 32, bias});
      const te::testing::Fp8ActivationOperands two(context, one.c);
      SCOPED_TRACE(one.c.name());
      const Fp8Storage to_one(context, DType::e4m3, 48, 112, 200.0f),
          to_two(context, DType::e4m3, 48, 112, 200.0f);
      gemm_activation_forward(context, one.quantized(to_one.output()));
      gemm(context, {.a = two.a.get(),
                     .b = two.b.get(),
                     .out = two.out,
                     .trans_b = true,
                     .bias = two.args().bias,
                     .fast_accumulation = true});
      activation_forward(context, {.kind = kind, .x = two.out, .y_fp8 = to_two.output()});
      EXPECT_EQ(count_different(one.out.raw(), two.out.raw(), 2), 0);
      expect_same(to_one.read(), to_two.read());
      EXPECT_GT(to_one.read().counters.saturated, 0u);
      gemm_activation_forward(context, one.stored());
      activation_forward(context, {.kind = kind, .x = two.out, .y = two.y});
      EXPECT_EQ(count_different(one.y.raw(), two.y.raw(), 2), 0);
    }
  }
}

// As in a tensor-parallel layer: chunks of rows, each when it arrives.
TEST(GemmActivation, RowsMayComeInChunks) {
  const Context context = Context::cpu();
  const GemmActivationCase c{ActivationKind::swiglu, DType::bf16, 256, 24, 40, true};
  GemmActivationOperands whole(context, c), chunks(context, c);
  gemm_activation_forward(context, whole.forward());
  gemm_activation_backward(context, whole.backward());
  const GemmActivationForward forward = chunks.forward();
  for (const int64_t first : {0, 128}) {
    GemmActivationForward chunk = forward;
    chunk.a = forward.a.slice_rows(first, 128);
    chunk.out = forward.out.slice_rows(first, 128);
    chunk.y = forward.y.slice_rows(first, 128);
    gemm_activation_forward(context, chunk);
  }
  EXPECT_EQ(count_different(chunks.y.raw(), whole.y.raw(), 2), 0);
  const GemmActivationBackward backward = chunks.backward();
  for (const int64_t first : {0, 128}) {
    GemmActivationBackward chunk = backward;
    chunk.a = backward.a.slice_rows(first, 128);
    chunk.x = backward.x.slice_rows(first, 128);
    chunk.dx = backward.dx.slice_rows(first, 128);
    chunk.d_y = backward.d_y.slice_rows(first, 128);
    gemm_activation_backward(context, chunk);
  }
  EXPECT_EQ(count_different(chunks.dx.raw(), whole.dx.raw(), 2), 0);
  EXPECT_LT(te::testing::relative_error(chunks.dbias.floats(), whole.dbias.floats()), 1e-6);
}

TEST(GemmActivation, ForwardRejectsInvalidArguments) {
  const Context context = Context::cpu();
  for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu}) {
    const GemmActivationCase c{kind, DType::bf16, 16, 24, 32, true};
    GemmActivationOperands operands(context, c);
    TestTensor wide(context, DType::f32, {16, 24}), narrow(context, DType::bf16, {16, 23}),
        bias(context, DType::f32, {c.n()}), k(context, DType::bf16, {16, 31});
    const auto rejects = [&](auto&& change) {
      GemmActivationForward args = operands.forward();
      change(args);
      EXPECT_THROW(gemm_activation_forward(context, args), InternalError);
    };
    EXPECT_NO_THROW(gemm_activation_forward(context, operands.forward()));
    rejects([](auto& args) { args.a = {}; });
    rejects([](auto& args) { args.b = {}; });
    rejects([](auto& args) { args.out = {}; });
    rejects([](auto& args) { args.y = {}; });
    rejects([&](auto& args) { args.y = wide; });
    rejects([&](auto& args) { args.y = narrow; });
    rejects([&](auto& args) { args.a = k; });
    rejects([&](auto& args) { args.bias = bias; });
    rejects([](auto& args) { args.bias.shape = {args.bias.numel() - 1}; });
    rejects([](auto& args) { args.y.data = args.out.data; });
    rejects([](auto& args) { args.out.data = static_cast<char*>(args.y.data) + args.y.bytes() - 2; });
    // Shapes of the other activation.
    rejects([&](auto& args) {
      args.kind = kind == ActivationKind::gelu ? ActivationKind::swiglu : ActivationKind::gelu;
    });
  }
}

TEST(GemmActivation, BackwardRejectsInvalidArguments) {
  const Context context = Context::cpu();
  for (const ActivationKind kind : {ActivationKind::gelu, ActivationKind::swiglu}) {
    const GemmActivationCase c{kind, DType::bf16, 16, 24, 32, true};
    GemmActivationOperands operands(context, c);
    operands.forward_in_two_steps(context);
    TestTensor wide(context, DType::f32, {16, c.n()}), e4m3(context, DType::e4m3, {16, 32});
    const auto rejects = [&](auto&& change) {
      GemmActivationBackward args = operands.backward();
      change(args);
      EXPECT_THROW(gemm_activation_backward(context, args), InternalError);
    };
    EXPECT_NO_THROW(gemm_activation_backward(context, operands.backward()));
    rejects([](auto& args) { args.a = {}; });
    rejects([](auto& args) { args.x = {}; });
    rejects([](auto& args) { args.dx = {}; });
    rejects([](auto& args) { args.d_y = {}; });
    rejects([](auto& args) { args.scratch = {}; });
    rejects([](auto& args) { args.scratch.shape = {args.scratch.numel() - 1}; });
    rejects([&](auto& args) { args.dx = wide; });
    rejects([&](auto& args) { args.a = e4m3; });
    rejects([](auto& args) { args.dbias.shape = {args.dbias.numel() - 1}; });
    rejects([](auto& args) { args.b.shape = {args.b.cols(), args.b.rows()}; });
    rejects([](auto& args) { args.dx = args.x; });
    rejects([](auto& args) { args.d_y.data = args.dx.data; });
    EXPECT_NO_THROW(gemm_activation_backward(context, operands.backward_and_y()));
    rejects([&](auto& args) { args.y = args.d_y; });
    rejects([&](auto& args) { args.y = wide; });
    rejects([&](auto& args) {
      args.kind = kind == ActivationKind::gelu ? ActivationKind::swiglu : ActivationKind::gelu;
    });
  }
}

}  // namespace
}  // namespace te::kernels
