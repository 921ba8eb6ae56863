// CPU GEMM against double precision: every layout, dtype and epilogue, aligned and unaligned sizes.
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize_mx.h"

#include <omp.h>

#include <cmath>

#include "core/float_types.h"
#include "kernels/activation/activation.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using te::testing::count_different;
using te::testing::TestTensor;

struct GemmCase {
  int64_t m, n, k;
  DType a, b, out;
  bool trans_a, trans_b, accumulate, bias;
};

/// Definition of gemm.h in double precision and without rounding; `magnitude` is the same with absolute values.
void reference(const GemmCase& c, const std::vector<float>& a, const std::vector<float>& b,
               const std::vector<float>& old, const std::vector<float>& bias, double scale,
               std::vector<double>& sum, std::vector<double>& magnitude) {
  sum.assign(static_cast<size_t>(c.m * c.n), 0.0);
  magnitude = sum;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      const auto at = static_cast<size_t>(i * c.n + j);
      for (int64_t l = 0; l < c.k; ++l) {
        const double x = a[static_cast<size_t>(c.trans_a ? l * c.m + i : i * c.k + l)];
        const double y = b[static_cast<size_t>(c.trans_b ? j * c.k + l : l * c.n + j)];
        sum[at] += scale * x * y;
        magnitude[at] += std::abs(scale * x * y);
      }
      if (c.accumulate) sum[at] += old[at], magnitude[at] += std::abs(old[at]);
      if (c.bias)
        sum[at] += bias[static_cast<size_t>(j)], magnitude[at] += std::abs(bias[static_cast<size_t>(j)]);
    }
  }
}

void check(const Context& context, const GemmCase& c) {
  SCOPED_TRACE(fmt::format("{}x{}x{} a {}{} b {}{} out {}{}{}", c.m, c.n, c.k, dtype_name(c.a),
                           c.trans_a ? "^T" : "", dtype_name(c.b), c.trans_b ? "^T" : "", dtype_name(c.out),
                           c.accumulate ? " +=" : "", c.bias ? " bias" : ""));
  TestTensor a(context, c.a, c.trans_a ? Shape{c.k, c.m} : Shape{c.m, c.k});
  TestTensor b(context, c.b, c.trans_b ? Shape{c.n, c.k} : Shape{c.k, c.n});
  TestTensor out(context, c.out, {c.m, c.n});
  TestTensor bias(context, c.out, {c.n});
  TestTensor a_scale(context, DType::f32, {1}), b_scale(context, DType::f32, {1});
  a.fill_normal(1, is_fp8(c.a) ? 30.0f : 1.0f);
  b.fill_normal(2, is_fp8(c.b) ? 30.0f : 1.0f);
  bias.fill_normal(3, 5.0f);
  a_scale.fill({0.03f});
  b_scale.fill({0.07f});
  if (c.accumulate) out.fill_normal(4, 10.0f);  // otherwise it keeps its NaN
  const std::vector<float> old = out.floats();

  Gemm args{a, b, out, c.trans_a, c.trans_b, c.accumulate};
  if (c.bias) args.bias = bias;
  double scale = 1.0;
  if (is_fp8(c.a)) {
    args.a = {a, a_scale, ScaleLayout::tensor};
    args.b = {b, b_scale, ScaleLayout::tensor};
    scale = double{0.03f} * double{0.07f};
  }
  gemm(context, args);

  std::vector<double> sum, magnitude;
  reference(c, a.floats(), b.floats(), old, bias.floats(), scale, sum, magnitude);
  const std::vector<float> actual = out.floats();
  // FP32 sums: at most k roundings of partial sums, in practice far fewer; then one rounding to the output's dtype
  // (half a unit of the 8th significant bit for BF16).
  const double sum_error = 4e-7 * std::sqrt(static_cast<double>(c.k) + 4.0);
  const double rounding = c.out == DType::bf16 ? 1.0 / 256.0 : 1.2e-7;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], sum[i], sum_error * magnitude[i] + rounding * std::abs(sum[i])) << "element " << i;
}

TEST(Gemm, HighPrecisionAgainstDouble) {
  const Context context = Context::cpu();
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {129, 257, 33}, {64, 128, 96}, {260, 48, 300}};
  for (const auto& [m, n, k] : sizes)
    for (const auto& [in, out] : {std::pair{DType::f32, DType::f32},
                                  {DType::f32, DType::bf16},
                                  {DType::bf16, DType::bf16},
                                  {DType::bf16, DType::f32}})
      for (int bits = 0; bits < 16; ++bits)
        check(context,
              {m, n, k, in, in, out, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0});
}

TEST(Gemm, Fp8AgainstTheExactProductOfTheDecodedValues) {
  const Context context = Context::cpu();
  const int64_t sizes[][3] = {{16, 16, 16}, {144, 272, 48}, {32, 64, 128}};
  for (const auto& [m, n, k] : sizes)
    for (const auto& [a, b] :
         {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}})
      for (DType out : {DType::f32, DType::bf16})
        for (int bits = 0; bits < 4; ++bits)
          check(context, {m, n, k, a, b, out, false, true, (bits & 1) != 0, (bits & 2) != 0});
}

// A scale per row of each operand: equals the GEMM of the dequantized operands.
TEST(Gemm, Fp8WithAScalePerRow) {
  const Context context = Context::cpu();
  constexpr int64_t kM = 144, kN = 272, kK = 48;
  TestTensor a(context, DType::e5m2, {kM, kK}), b(context, DType::e4m3, {kN, kK});
  TestTensor a_scales(context, DType::f32, {kM}), b_scales(context, DType::f32, {kN}),
      bias(context, DType::f32, {kN});
  a.fill_normal(1, 30.0f), b.fill_normal(2, 30.0f), bias.fill_normal(3, 5.0f);
  a_scales.fill_normal(4, 0.1f), b_scales.fill_normal(5, 0.1f);
  for (const bool accumulate : {false, true}) {
    TestTensor out(context, DType::f32, {kM, kN});
    out.fill_normal(6, 10.0f);
    const std::vector<float> old = out.floats();
    gemm(context, {.a = {a, a_scales, ScaleLayout::rows},
                   .b = {b, b_scales, ScaleLayout::rows},
                   .out = out,
                   .trans_b = true,
                   .accumulate = accumulate,
                   .bias = bias});
    const auto av = a.floats(), bv = b.floats(), as = a_scales.floats(), bs = b_scales.floats(),
               actual = out.floats();
    for (int64_t r = 0; r < kM; ++r) {
      for (int64_t c = 0; c < kN; ++c) {
        double sum = 0, size = 1;
        for (int64_t k = 0; k < kK; ++k) {
          const double term = double{av[r * kK + k]} * bv[c * kK + k] * as[r] * bs[c];
          sum += term, size += std::abs(term);
        }
        sum += bias.floats()[c] + (accumulate ? old[r * kN + c] : 0.0f);
        ASSERT_NEAR(actual[r * kN + c], sum, 1e-6 * (size + std::abs(sum) + 20)) << r << " " << c;
      }
    }
  }
}

/// Inverse scale of element (r, c) according to the layout.
float inverse_scale(const Matrix& matrix, const std::vector<float>& scales, int64_t r, int64_t c) {
  if (matrix.layout == ScaleLayout::vectors) return scales[c / 128 * matrix.rows() + r];
  return scales[r / 128 * matrix.scales.cols() + c / 128];
}

// Scales of 128 values of the summed dimension, which ends within a block: equals the GEMM of the dequantized operands.
TEST(Gemm, Fp8WithScalesOf128Values) {
  const Context context = Context::cpu();
  constexpr int64_t kM = 144, kN = 272, kK = 304;
  for (const ScaleLayout b_layout : {ScaleLayout::blocks, ScaleLayout::vectors}) {
    TestTensor a(context, DType::e5m2, {kM, kK}), b(context, DType::e4m3, {kN, kK});
    TestTensor a_scales(context, DType::f32, scale_shape(ScaleLayout::vectors, kM, kK)),
        b_scales(context, DType::f32, scale_shape(b_layout, kN, kK)), out(context, DType::f32, {kM, kN});
    a.fill_normal(1, 30.0f), b.fill_normal(2, 30.0f);
    a_scales.fill_normal(4, 0.1f), b_scales.fill_normal(5, 0.1f), out.fill_normal(6, 10.0f);
    const std::vector<float> old = out.floats();
    const Matrix am{a, a_scales, ScaleLayout::vectors}, bm{b, b_scales, b_layout};
    gemm(context, {.a = am, .b = bm, .out = out, .trans_b = true, .accumulate = true});
    const auto av = a.floats(), bv = b.floats(), as = a_scales.floats(), bs = b_scales.floats(),
               actual = out.floats();
    for (int64_t r = 0; r < kM; ++r) {
      for (int64_t c = 0; c < kN; ++c) {
        double sum = old[r * kN + c], size = 20 + std::abs(sum);
        for (int64_t k = 0; k < kK; ++k) {
          const double term = double{av[r * kK + k]} * bv[c * kK + k] * inverse_scale(am, as, r, k) *
                              inverse_scale(bm, bs, c, k);
          sum += term, size += std::abs(term);
        }
        ASSERT_NEAR(actual[r * kN + c], sum, 1e-6 * size) << r << " " << c;
      }
    }
    // A slice of rows, whose scales have a larger stride.
    TestTensor part(context, DType::f32, {48, kN});
    gemm(context, {.a = am.slice_rows(64, 48), .b = bm, .out = part, .trans_b = true});
    const std::vector<float> rows = part.floats();
    for (size_t i = 0; i < rows.size(); ++i)
      ASSERT_NEAR(rows[i], actual[64 * kN + i] - old[64 * kN + i], 1e-2) << i;
  }
}

// As the GEMM of the dequantized operands, bit for bit, since powers of two change no rounding; also a slice of rows.
TEST(Gemm, Mxfp8EqualsTheGemmOfDequantizedOperands) {
  const Context context = Context::cpu();
  constexpr int64_t kM = 144, kN = 272, kK = 224;
  const auto native = [&](DType type, int64_t rows, uint64_t seed) {
    struct Operand {
      TestTensor values, codes, scales;
    };
    Operand operand{{context, DType::f32, {rows, kK}},
                    {context, type, {rows, kK}},
                    {context, DType::u8, scale_shape(ScaleLayout::mx, rows, kK)}};
    TestTensor x(context, DType::f32, {rows, kK});
    x.fill_normal(seed, 30.0f);
    quantize_mx(context,
                {.x = x, .format = type, .rowwise = {operand.codes, operand.scales, ScaleLayout::mx}});
    quantize_mx(context, {.x = x, .format = type, .rowwise = operand.values.get()});
    return operand;
  };
  for (const DType type : {DType::e4m3, DType::e5m2}) {
    const auto a = native(type, kM, 1), b = native(DType::e4m3, kN, 2);
    const Matrix am{a.codes, a.scales, ScaleLayout::mx}, bm{b.codes, b.scales, ScaleLayout::mx};
    for (const DType type_of_out : {DType::f32, DType::bf16}) {
      TestTensor out(context, type_of_out, {kM, kN}), expected(context, type_of_out, {kM, kN}),
          part(context, type_of_out, {16, kN});
      out.fill_normal(3), expected.fill_normal(3);
      gemm(context, {.a = am, .b = bm, .out = out, .trans_b = true, .accumulate = true});
      gemm(context, {.a = a.values, .b = b.values, .out = expected, .trans_b = true, .accumulate = true});
      EXPECT_EQ(out.raw(), expected.raw());
      gemm(context, {.a = am.slice_rows(128, 16), .b = bm, .out = part, .trans_b = true});
      gemm(context, {.a = a.values.get().slice_rows(128, 16),
                     .b = b.values,
                     .out = expected.get().slice_rows(0, 16),
                     .trans_b = true});
      std::vector<float> first = expected.floats();
      first.resize(16 * kN);
      EXPECT_EQ(part.floats(), first);
    }
  }
}

TEST(Gemm, SlicesKeepTheirScales) {
  const Context context = Context::cpu();
  TestTensor values(context, DType::e4m3, {32, 16}), scales(context, DType::f32, {32}),
      one(context, DType::f32, {1});
  const Matrix rows = Matrix{values, scales, ScaleLayout::rows}.slice_rows(16, 8);
  EXPECT_EQ(rows.rows(), 8);
  EXPECT_EQ(rows.scales.numel(), 8);
  EXPECT_EQ(rows.scales.as<float>(), scales.get().as<float>() + 16);
  EXPECT_EQ((Matrix{values, one, ScaleLayout::tensor}.slice_rows(16, 8).scales.data), one.get().data);
}

TEST(Gemm, Bf16ResultIsRoundedOnce) {
  const Context context = Context::cpu();
  // 256 + 1 + 2^-7 is just above the midpoint of 256 and 258 in BF16. Rounding the sum (to 256) before adding the bias
  // and the old value would give 256.
  TestTensor a(context, DType::bf16, {1, 2}), b(context, DType::bf16, {2, 1});
  TestTensor out(context, DType::bf16, {1, 1}), bias(context, DType::bf16, {1});
  a.fill({256.0f, 1.0f});
  b.fill({1.0f, 0.5f});
  out.fill({0.5f});
  bias.fill({0.0078125f});
  Gemm args{a, b, out};
  args.accumulate = true;
  args.bias = bias;
  gemm(context, args);
  EXPECT_EQ(out.floats()[0], 258.0f);
}

TEST(Gemm, DoesNotDependOnTheNumberOfThreads) {
  const Context context = Context::cpu();
  TestTensor a(context, DType::bf16, {300, 200}), b(context, DType::bf16, {530, 200});
  TestTensor one(context, DType::f32, {300, 530}), many(context, DType::f32, {300, 530});
  a.fill_normal(1);
  b.fill_normal(2);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  gemm(context, {a, b, one, false, true});
  omp_set_num_threads(3);
  gemm(context, {a, b, many, false, true});
  omp_set_num_threads(threads);
  EXPECT_EQ(count_different(one.raw(), many.raw(), 4), 0);
}

TEST(Gemm, RejectsInvalidArguments) {
  const Context context = Context::cpu();
  TestTensor x(context, DType::bf16, {16, 32}), w(context, DType::bf16, {48, 32}),
      y(context, DType::bf16, {16, 48});
  TestTensor x8(context, DType::e5m2, {16, 32}), w8(context, DType::e4m3, {48, 32}),
      v8(context, DType::e5m2, {48, 32});
  TestTensor odd(context, DType::e4m3, {12, 32}), odd_y(context, DType::bf16, {12, 48}),
      f(context, DType::f32, {16, 32}), fw(context, DType::f32, {48, 32});
  TestTensor scale(context, DType::f32, {1}), bias(context, DType::f32, {48});
  const auto by_tensor = [&](TestTensor& values) { return Matrix{values, scale, ScaleLayout::tensor}; };
  const auto by_rows = [&](TestTensor& values) { return Matrix{values, scale, ScaleLayout::rows}; };
  EXPECT_THROW(gemm(context, {x, w, y}), InternalError);  // k disagrees
  EXPECT_THROW(gemm(context, {f, w, y, false, true}), InternalError);
  EXPECT_THROW(gemm(context, {x, w, y, false, true, false, bias}), InternalError);  // fp32 bias, bf16 out
  EXPECT_THROW(gemm(context, {x8, w8, y, false, true}), InternalError);             // no scales
  EXPECT_THROW(gemm(context, {by_tensor(x8), by_tensor(v8), y, false, true}), InternalError);
  EXPECT_THROW(gemm(context, {by_tensor(odd), by_tensor(w8), odd_y, false, true}), InternalError);
  EXPECT_THROW(gemm(context, {by_rows(x8), by_tensor(w8), y, false, true}), InternalError);  // too few scales
  EXPECT_THROW(gemm(context, {Matrix{x, scale, ScaleLayout::tensor}, w, y, false, true}), InternalError);
  TestTensor blocks(context, DType::f32, {1, 4}), vectors(context, DType::f32, {1, 48});
  const Matrix a_blocks{x8, blocks, ScaleLayout::blocks}, w_blocks{w8, blocks, ScaleLayout::blocks};
  EXPECT_THROW(gemm(context, {a_blocks, w_blocks, y, false, true}), InternalError);  // weight by weight
  EXPECT_THROW(gemm(context, {by_tensor(x8), w_blocks, y, false, true}), InternalError);
  EXPECT_THROW(gemm(context, {a_blocks, Matrix{w8, vectors, ScaleLayout::rows}, y, false, true}),
               InternalError);
  EXPECT_EQ(gemm_flops({x, w, y, false, true}), 2 * 16 * 48 * 32);
}

}  // namespace
}  // namespace te::kernels
