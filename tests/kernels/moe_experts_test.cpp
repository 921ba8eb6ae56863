// CPU references of the experts' activation and grouped GEMMs against single GEMMs, definitions in double precision and
// finite differences.
#include <cmath>

#include "kernels/gemm/gemm.h"
#include "moe_cases.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

// --- activation --------------------------------------------------------------------------------------------

TEST(Moe, ActivationIsMultipliedByTheProbability) {
  const MoeCase c{9, 4, 2, 8};
  const MoeOrder order(cpu(), c);
  const int64_t ffn = 5, rows = order.rows();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TestTensor x(cpu(), dtype, {rows, 2 * ffn}), y(cpu(), dtype, {rows, ffn}),
        plain(cpu(), dtype, {rows, ffn}), probs(cpu(), DType::f32, {c.tokens, c.topk});
    x.fill_normal(1), probs.fill_normal(2);
    expert_activation(cpu(), {.x = x, .source = order.source, .probs = probs, .y = y});
    activation_forward(cpu(), {.x = x, .y = plain});
    const std::vector<float> out = y.floats(), expected = plain.floats(), p = probs.floats();
    const std::vector<int32_t> source = ints_of(order.source);
    for (int64_t i = 0; i < rows * ffn; ++i) {
      const int32_t from = source[static_cast<size_t>(i / ffn)];
      const float value = from < 0 ? 0.0f : expected[i] * p[static_cast<size_t>(from)];
      EXPECT_NEAR(out[i], value, (dtype == DType::f32 ? 1e-6f : 0.012f) * (std::abs(value) + 0.01f));
    }
  }
}

TEST(Moe, ActivationGradientMatchesFiniteDifferences) {
  const MoeCase c{4, 3, 2, 4};
  const MoeOrder order(cpu(), c);
  const int64_t ffn = 3, rows = order.rows();
  for (const ActivationKind kind :
       {ActivationKind::swiglu, ActivationKind::gelu, ActivationKind::swiglu_clamped}) {
    const int64_t width = is_gated(kind) ? 2 * ffn : ffn;
    TestTensor x(cpu(), DType::f32, {rows, width}), y(cpu(), DType::f32, {rows, ffn}),
        dy(cpu(), DType::f32, {rows, ffn}), dx(cpu(), DType::f32, {rows, width}),
        probs(cpu(), DType::f32, {c.tokens, c.topk}), d_probs(cpu(), DType::f32, {c.tokens, c.topk});
    x.fill_normal(1), dy.fill_normal(2), probs.fill_normal(3);
    const float clamp = kind == ActivationKind::swiglu_clamped ? 0.8f : 0.0f;
    expert_activation_backward(cpu(), {.kind = kind,
                                       .x = x,
                                       .source = order.source,
                                       .probs = probs,
                                       .dy = dy,
                                       .dx = dx,
                                       .d_probs = d_probs,
                                       .clamp = clamp});
    SCOPED_TRACE(static_cast<int>(kind));
    const auto forward = [&] {
      expert_activation(
          cpu(), {.kind = kind, .x = x, .source = order.source, .probs = probs, .y = y, .clamp = clamp});
    };
    check_gradient(forward, x, dx, y, dy, 0.002f);
    check_gradient(forward, probs, d_probs, y, dy, 0.002f);
  }
}

// --- grouped GEMMs -----------------------------------------------------------------------------------------

TEST(Moe, GroupedGemmsMatchOneGemmPerExpert) {
  const int64_t n = 19, k = 24;
  for (const MoeCase& c : kMoeCases) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const MoeOrder order(cpu(), c);
      const int64_t rows = order.rows();
      TestTensor x(cpu(), dtype, {rows, k}), w(cpu(), dtype, {c.experts * n, k}), y(cpu(), dtype, {rows, n}),
          dx(cpu(), dtype, {rows, k}), dw(cpu(), DType::f32, {c.experts * n, k}),
          added(cpu(), DType::f32, {c.experts * n, k}), added_y(cpu(), dtype, {rows, n});
      x.fill_normal(1), w.fill_normal(2), added.fill_value(1.0f), added_y.fill_value(2.0f);
      grouped_gemm(cpu(), {.a = {x}, .b = {w}, .offsets = order.offsets, .out = y, .trans_b = true});
      grouped_gemm(cpu(), {.a = {y}, .b = {w}, .offsets = order.offsets, .out = dx});
      GroupedGemm adds{.a = {x}, .b = {w}, .offsets = order.offsets, .out = added_y, .trans_b = true};
      adds.accumulate = true;
      grouped_gemm(cpu(), adds);
      grouped_wgrad(cpu(), {.a = {y}, .b = {x}, .offsets = order.offsets, .out = dw});
      grouped_wgrad(cpu(), {.a = {y}, .b = {x}, .offsets = order.offsets, .out = added, .accumulate = true});
      const std::vector<int32_t> offsets = ints_of(order.offsets);
      const std::vector<float> all_y = y.floats(), all_dx = dx.floats(), all_dw = dw.floats(),
                               sums = added.floats(), sums_y = added_y.floats();
      for (int64_t e = 0; e < c.experts; ++e) {
        const int64_t first = offsets[static_cast<size_t>(e)],
                      count = offsets[static_cast<size_t>(e) + 1] - first;
        TestTensor one_dw(cpu(), DType::f32, {n, k});
        one_dw.fill_value(0.0f);
        if (count > 0) {
          const Tensor a = x.get().slice_rows(first, count), b = w.get().slice_rows(e * n, n),
                       dy = y.get().slice_rows(first, count);
          TestTensor one(cpu(), dtype, {count, n}), one_dx(cpu(), dtype, {count, k});
          gemm(cpu(), {.a = a, .b = b, .out = one, .trans_b = true});
          gemm(cpu(), {.a = dy, .b = b, .out = one_dx});
          gemm(cpu(), {.a = dy, .b = a, .out = one_dw, .trans_a = true});
          const std::vector<float> ys = one.floats(), dxs = one_dx.floats();
          TestTensor one_sum(cpu(), dtype, {count, n});
          one_sum.fill_value(2.0f);
          gemm(cpu(), {.a = a, .b = b, .out = one_sum, .trans_b = true, .accumulate = true});
          const std::vector<float> sum = one_sum.floats();
          EXPECT_TRUE(std::equal(sum.begin(), sum.end(), sums_y.begin() + first * n));
          EXPECT_TRUE(std::equal(ys.begin(), ys.end(), all_y.begin() + first * n));
          EXPECT_TRUE(std::equal(dxs.begin(), dxs.end(), all_dx.begin() + first * k));
        }
        const std::vector<float> dws = one_dw.floats();
        for (int64_t i = 0; i < n * k; ++i) {
          EXPECT_NEAR(all_dw[e * n * k + i], dws[i], 1e-5 * (1.0f + std::abs(dws[i])));
          EXPECT_NEAR(sums[e * n * k + i], dws[i] + 1.0f, 1e-5 * (1.0f + std::abs(dws[i])));
        }
      }
      for (int64_t i = offsets.back() * n; i < rows * n; ++i)
        EXPECT_TRUE(std::isnan(all_y[i]) && sums_y[i] == 2.0f);  // not written
    }
  }
}

TEST(Moe, Fp8GroupedGemmsScaleEachExpert) {
  const MoeCase c{40, 3, 2, 16};
  const int64_t n = 16, k = 32;
  const MoeOrder order(cpu(), c);
  const int64_t rows = order.rows();
  TestTensor x(cpu(), DType::e5m2, {rows, k}), w(cpu(), DType::e4m3, {c.experts * n, k}),
      y(cpu(), DType::f32, {rows, n}), a_scales(cpu(), DType::f32, {c.experts}),
      b_scales(cpu(), DType::f32, {c.experts});
  x.fill_normal(1), w.fill_normal(2), a_scales.fill({0.5f, 2.0f, 3.0f}), b_scales.fill({1.0f, 0.25f, 7.0f});
  grouped_gemm(cpu(), {.a = {x, a_scales, ScaleLayout::tensor},
                       .b = {w, b_scales, ScaleLayout::tensor},
                       .offsets = order.offsets,
                       .out = y,
                       .trans_b = true});
  TestTensor dy(cpu(), DType::e5m2, {n, rows}), xt(cpu(), DType::e4m3, {k, rows}),
      dw(cpu(), DType::bf16, {c.experts * n, k});
  dy.fill_normal(3), xt.fill_normal(4);
  grouped_wgrad(cpu(), {.a = {dy, a_scales, ScaleLayout::tensor},
                        .b = {xt, b_scales, ScaleLayout::tensor},
                        .offsets = order.offsets,
                        .out = dw});
  const std::vector<float> xs = x.floats(), ws = w.floats(), ys = y.floats(), sa = a_scales.floats(),
                           sb = b_scales.floats(), dys = dy.floats(), xts = xt.floats(), dws = dw.floats();
  const std::vector<int32_t> offsets = ints_of(order.offsets);
  for (int64_t e = 0; e < c.experts; ++e) {
    const double scale =
        static_cast<double>(sa[static_cast<size_t>(e)]) * static_cast<double>(sb[static_cast<size_t>(e)]);
    const int64_t first = offsets[static_cast<size_t>(e)], end = offsets[static_cast<size_t>(e) + 1];
    for (int64_t r = first; r < end; ++r)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0.0;
        for (int64_t d = 0; d < k; ++d)
          sum += static_cast<double>(xs[r * k + d]) * static_cast<double>(ws[(e * n + j) * k + d]);
        EXPECT_NEAR(ys[r * n + j], sum * scale, 1e-4 * (1.0 + std::abs(sum * scale)));
      }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < k; ++j) {
        double sum = 0.0;
        for (int64_t r = first; r < end; ++r)
          sum += static_cast<double>(dys[i * rows + r]) * static_cast<double>(xts[j * rows + r]);
        EXPECT_NEAR(dws[(e * n + i) * k + j], sum * scale, 0.005 * (std::abs(sum * scale) + 0.01));
      }
  }
}

TEST(Moe, NanStaysWithItsExpert) {
  const MoeCase c{20, 4, 2, 8};
  const MoeOrder order(cpu(), c);
  TestTensor x(cpu(), DType::f32, {order.rows(), 8}), w(cpu(), DType::f32, {4 * 8, 8}),
      y(cpu(), DType::f32, {order.rows(), 8});
  x.fill_normal(1);
  std::vector<float> weights = testing::normal_values(4 * 64, 2);
  weights[64] = NAN;
  w.fill(weights);
  grouped_gemm(cpu(), {.a = {x}, .b = {w}, .offsets = order.offsets, .out = y, .trans_b = true});
  const std::vector<int32_t> offsets = ints_of(order.offsets);
  const std::vector<float> out = y.floats();
  for (int64_t r = 0; r < offsets.back(); ++r)
    EXPECT_EQ(std::isnan(out[r * 8]), r >= offsets[1] && r < offsets[2]) << r;
}

}  // namespace
}  // namespace te::kernels
