// Muon's steps on the CPU: by hand, against the published algorithm in double precision, and with the skip flag.
#include "kernels/muon/muon.h"

#include <bit>

#include "kernels/muon_cases.h"
#include "kernels/param_split/param_split.h"

namespace te::testing {
namespace {

using namespace kernels;

TEST(Muon, MomentumByHand) {
  TestTensor grad(cpu(), DType::f32, {2}), momentum(cpu(), DType::f32, {2}), update(cpu(), DType::f32, {2});
  const float multiplier = 0.5f;
  for (const bool nesterov : {true, false}) {
    grad.fill({4.0f, -2.0f});
    momentum.fill({8.0f, 0.0f});
    MuonMomentum args{.main_grad = grad,
                      .momentum = momentum,
                      .update = update,
                      .decay = 0.75f,
                      .nesterov = nesterov,
                      .grad_multiplier = &multiplier};
    muon_momentum(cpu(), args);
    // 0.75 * 8 + 2 and 0 - 1; then 2 + 0.75 * 8 and -1 - 0.75.
    EXPECT_EQ(momentum.floats(), (std::vector<float>{8.0f, -1.0f}));
    EXPECT_EQ(update.floats(),
              nesterov ? (std::vector<float>{8.0f, -1.75f}) : (std::vector<float>{8.0f, -1.0f}));
    const int32_t skip = 1;
    args.skip = &skip;
    const std::vector<uint8_t> before = momentum.raw();
    muon_momentum(cpu(), args);
    EXPECT_EQ(momentum.raw(), before);
  }
}

// Two rows of a part with two columns, starting at its second element, in a matrix of five columns.
TEST(Muon, PlacesAPartInAMatrix) {
  TestTensor part(cpu(), DType::f32, {3}), full(cpu(), DType::f32, {3, 5});
  part.fill({1, 2, 3});
  full.fill_value(0);
  muon_place(
      cpu(),
      {.part = part,
       .full = full,
       .region = {.local_cols = 2, .first_local = 1, .global_row = 1, .global_col = 3, .global_cols = 5}});
  EXPECT_EQ(full.floats(), (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 3}));
  EXPECT_THROW(muon_place(cpu(), {.part = part, .full = full, .region = {2, 1, 2, 3, 5}}), InternalError);
}

TEST(Muon, UpdateByHand) {
  for (const bool decays : {false, true}) {
    TestTensor main(cpu(), DType::f32, {2}), param(cpu(), DType::bf16, {2}), o(cpu(), DType::f32, {1, 2});
    main.fill({1.0f, -2.0f});
    o.fill({0.5f, -1.0f});
    MuonUpdate args{.main_param = main,
                    .param = param,
                    .orthogonal = o,
                    .region = {.local_cols = 2, .global_cols = 2},
                    .lr = 0.125f,
                    .weight_decay = decays ? 0.25f : 0.0f,
                    .scale = 2.0};
    muon_update(cpu(), args);
    // 1 - 0.25 * 0.5 and -2 + 0.25; with decay 1 (1 - 0.03125) - 0.125 and -2 (1 - 0.03125) + 0.25.
    const std::vector<float> expected =
        decays ? std::vector<float>{0.84375f, -1.6875f} : std::vector{0.875f, -1.75f};
    EXPECT_EQ(main.floats(), expected);
    EXPECT_EQ(param.floats(), expected);
    const int32_t skip = 1;
    args.skip = &skip;
    muon_update(cpu(), args);
    EXPECT_EQ(main.floats(), expected);
  }
}

// With remainders the parameter is the same number, except for the one case described in param_split.h.
TEST(Muon, RemaindersGiveTheSameParameters) {
  const int64_t n = 5000;
  TestTensor main(cpu(), DType::f32, {n}), param(cpu(), DType::bf16, {n}), o(cpu(), DType::bf16, {50, 100});
  TestTensor value(cpu(), DType::bf16, {n}), remainder(cpu(), DType::u16, {n});
  main.fill_normal(1);
  o.fill_normal(2, 0.1f);
  split_params(cpu(), {main, value, remainder});
  MuonUpdate args{.main_param = main,
                  .param = param,
                  .orthogonal = o,
                  .region = {.local_cols = 100, .global_cols = 100},
                  .lr = 0.01f,
                  .weight_decay = 0.1f,
                  .scale = 2.0};
  muon_update(cpu(), args);
  args.main_param = {};
  args.param = value, args.remainder = remainder;
  muon_update(cpu(), args);
  std::vector<float> joined(static_cast<size_t>(n));
  join_params_on_host(value.get().as<uint16_t>(), remainder.get().as<uint16_t>(), n, joined.data());
  const std::vector<float> full = main.floats();
  for (size_t i = 0; i < joined.size(); ++i)
    ASSERT_LE(std::abs(std::bit_cast<int32_t>(joined[i]) - std::bit_cast<int32_t>(full[i])), 1) << i;
}

TEST(NewtonSchulz, MatchesDoublePrecision) {
  for (const MatrixShape& shape : kMatrixShapes) {
    SCOPED_TRACE(fmt::format("{} x {}", shape.rows, shape.cols));
    const std::vector<float> values = normal_values(shape.rows * shape.cols, 3, 0.2f);
    const std::vector<float> expected = orthogonalized_in_double(values, shape);
    // Small singular values grow by 3.4445 per iteration, and rounding errors of 6e-8 with them; observed: 1.4e-6.
    EXPECT_LT(relative_error(orthogonalized(cpu(), DType::f32, shape, values), expected), 1e-5);
    // BF16: each X, B and GEMM result has an error of up to 2^-9, three of these make an iteration, and its slope at 1
    // is not small, so the rounding errors of the last iterations remain. Observed: 0.013 to 0.032.
    EXPECT_LT(relative_error(orthogonalized(cpu(), DType::bf16, shape, values), expected), 0.06);
  }
}

TEST(NewtonSchulz, IterationsAreCounted) {
  const MatrixShape shape{5, 8};
  const std::vector<float> values = normal_values(40, 4);
  for (const int iterations : {1, 2, 7}) {
    EXPECT_LT(relative_error(orthogonalized(cpu(), DType::f32, shape, values, iterations),
                             orthogonalized_in_double(values, shape, iterations)),
              1e-5);
  }
}

// Rows of the result have about unit length and are orthogonal: Jordan's coefficients leave singular values between
// 0.68 and 1.13, so the squared lengths of rows are between 0.46 and 1.28, and dot products of two rows are within half
// their difference.
TEST(NewtonSchulz, MakesRowsOrthogonal) {
  const MatrixShape shape{16, 256};
  const std::vector<float> x = orthogonalized(cpu(), DType::f32, shape, normal_values(16 * 256, 5, 1e-3f));
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t j = 0; j < shape.rows; ++j) {
      double dot = 0;
      for (int64_t k = 0; k < shape.cols; ++k) dot += double{x[i * shape.cols + k]} * x[j * shape.cols + k];
      if (i == j) {
        EXPECT_GT(dot, 0.46);
        EXPECT_LT(dot, 1.28);
      } else {
        EXPECT_LT(std::abs(dot), 0.41);
      }
    }
  }
}

// The magnitude of a gradient does not matter; a zero gradient is allowed.
TEST(NewtonSchulz, ScaleDoesNotMatter) {
  const MatrixShape shape{12, 20};
  std::vector<float> values = normal_values(240, 6), small = values;
  for (float& value : small) value *= 0x1p-40f;
  for (float& value : values) value *= 0x1p20f;
  // The norm of the small values, 1.4e-11, is far below the 1e-7 that is added to it, so they stay small, as published.
  const std::vector<float> big = orthogonalized(cpu(), DType::f32, shape, values);
  EXPECT_LT(relative_error(big, orthogonalized_in_double(values, shape)), 1e-5);
  EXPECT_LT(
      relative_error(orthogonalized(cpu(), DType::f32, shape, small), orthogonalized_in_double(small, shape)),
      1e-5);
  EXPECT_EQ(orthogonalized(cpu(), DType::bf16, shape, std::vector<float>(240, 0.0f)),
            std::vector<float>(240, 0.0f));
}

}  // namespace
}  // namespace te::testing
