// Muon's steps on the GPU against the CPU: elementwise steps bitwise, Newton-Schulz within the rounding of its GEMMs.
#include "kernels/muon/muon.h"

#include "kernels/muon_cases.h"
#include "kernels/param_split/param_split.h"

namespace te::testing {
namespace {

using namespace kernels;

/// Momentum, parameter update and the steps in between on one device; holds the bytes of all results.
struct MuonRun {
  std::vector<uint8_t> momentum, update, full, normalized, combined, main, param, value, remainder;

  MuonRun(const Context& context, DType dtype, DType grad_dtype, bool skipped) {
    const int64_t rows = 37, cols = 53, local_cols = 19, n = 500, first = 7;
    const ParameterRegion region{.local_cols = local_cols,
                                 .first_local = first,
                                 .global_row = 3,
                                 .global_col = 11,
                                 .global_cols = cols};
    TestTensor grad(context, grad_dtype, {n}), m(context, DType::f32, {n}), u(context, dtype, {n});
    TestTensor x(context, dtype, {rows, cols}), y(context, dtype, {rows, cols});
    TestTensor multiplier(context, DType::f32, {1}), skip(context, DType::i32, {1}),
        sum(context, DType::f32, {1});
    TestTensor fp32(context, DType::f32, {n}), bf16(context, DType::bf16, {n});
    TestTensor upper(context, DType::bf16, {n}), lower(context, DType::u16, {n});
    grad.fill_normal(1, 0.1f), m.fill_normal(2), u.fill_normal(9), x.fill_normal(3), y.fill_normal(4);
    fp32.fill_normal(5), bf16.fill_normal(6);
    multiplier.fill({0.3f}), sum.fill({123.456f}), skip.fill_ints({skipped ? 1 : 0});
    split_params(context, {fp32, upper, lower});
    const auto* flag = skip.get().as<const int32_t>();
    muon_momentum(context, {.main_grad = grad,
                            .momentum = m,
                            .update = u,
                            .grad_multiplier = multiplier.get().as<const float>(),
                            .skip = flag});
    muon_place(context, {.part = u, .full = x, .region = region});
    full = x.raw();
    muon_normalize(context, {.x = x, .sum_of_squares = sum});
    normalized = x.raw();
    muon_combine(context, {.x = x, .y = y, .a = 3.4445f, .b = -0.7f});
    combined = x.raw();
    MuonUpdate args{.main_param = fp32,
                    .param = bf16,
                    .orthogonal = x,
                    .region = region,
                    .lr = 0.01f,
                    .weight_decay = 0.1f,
                    .scale = 1.7,
                    .skip = flag};
    muon_update(context, args);
    args.main_param = {}, args.param = upper, args.remainder = lower;
    muon_update(context, args);
    momentum = m.raw(), update = u.raw();
    main = fp32.raw(), param = bf16.raw(), value = upper.raw(), remainder = lower.raw();
  }
  bool operator==(const MuonRun&) const = default;
};

TEST(MuonGpu, ElementwiseStepsMatchCpuBitwise) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType grad_dtype : {DType::f32, DType::bf16}) {
      for (const bool skipped : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, gradients {}{}", dtype_name(dtype), dtype_name(grad_dtype),
                                 skipped ? ", skipped" : ""));
        const MuonRun expected(cpu, dtype, grad_dtype, skipped), actual(gpu, dtype, grad_dtype, skipped);
        EXPECT_EQ(actual.momentum, expected.momentum);
        EXPECT_EQ(actual.update, expected.update);
        EXPECT_EQ(actual.full, expected.full);
        EXPECT_EQ(actual.normalized, expected.normalized);
        EXPECT_EQ(actual.combined, expected.combined);
        EXPECT_EQ(actual.main, expected.main);
        EXPECT_EQ(actual.param, expected.param);
        EXPECT_EQ(actual.value, expected.value);
        EXPECT_EQ(actual.remainder, expected.remainder);
      }
    }
  }
}

// Bounds of muon_test.cpp against the same double-precision results. Large matrices are compared with the CPU, with
// twice the bound because both round.
TEST(NewtonSchulzGpu, MatchesDoublePrecision) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  for (const MatrixShape& shape : kMatrixShapes) {
    SCOPED_TRACE(fmt::format("{} x {}", shape.rows, shape.cols));
    const std::vector<float> values = normal_values(shape.rows * shape.cols, 3, 0.2f);
    const std::vector<float> expected = orthogonalized_in_double(values, shape);
    EXPECT_LT(relative_error(orthogonalized(gpu, DType::f32, shape, values), expected), 1e-5);
    EXPECT_LT(relative_error(orthogonalized(gpu, DType::bf16, shape, values), expected), 0.06);
  }
}

TEST(NewtonSchulzGpu, LargeMatricesMatchTheCpuAndRepeat) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const MatrixShape shape : {MatrixShape{768, 2048}, MatrixShape{2048, 768}}) {
    const std::vector<float> values = normal_values(shape.rows * shape.cols, 8, 1e-3f);
    const std::vector<float> once = orthogonalized(gpu, DType::bf16, shape, values);
    EXPECT_LT(relative_error(once, orthogonalized(cpu, DType::bf16, shape, values)), 0.08);
    EXPECT_EQ(orthogonalized(gpu, DType::bf16, shape, values), once);
  }
}

}  // namespace
}  // namespace te::testing
