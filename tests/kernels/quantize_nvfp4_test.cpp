// Quantization to NVFP4 against a reference implementation (scripts/make_quantization_fixtures.py), all codes, ties,
// stochastic rounding and special values, and GEMMs of its results.
#include "kernels/quantize/quantize_nvfp4.h"

#include <fstream>
#include <iterator>

#include "core/float_types.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/nvfp4_formula.h"
#include "kernels/quantize_nvfp4_cases.h"

namespace te::kernels {
namespace {

constexpr float kE2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float e2m1(uint8_t code) {
  return (code & 8) != 0 ? -kE2m1[code & 7] : kE2m1[code & 7];
}

const Nvfp4Group kPlain{1.0f, 1.0f};

/// Checks one layout [rows, cols] against codes and scales; returns the address after them.
const uint8_t* check_reference(int64_t rows, int64_t cols, const std::vector<float>& values,
                               const uint8_t* codes) {
  const uint8_t* const scales = codes + rows * cols / 2;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto code = static_cast<uint8_t>(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4);
    EXPECT_EQ(values[static_cast<size_t>(i)], e2m1(code) * to_float(float8_e4m3{scales[i / kNvfp4Group]}))
        << i;
  }
  return scales + rows * cols / kNvfp4Group;
}

TEST(QuantizeNvfp4, EqualsTheReference) {
  constexpr int64_t kRows = 64, kCols = 96;
  for (const char* name : {"rows", "blocks", "hadamard", "tiny"}) {
    SCOPED_TRACE(name);
    std::ifstream file(fmt::format("{}/tests/fixtures/quantize/nvfp4_{}.bin", TE_SOURCE_DIR, name),
                       std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    ASSERT_EQ(bytes.size(),
              static_cast<size_t>(kRows * kCols * 2 + 2 * (kRows * kCols / 2 + kRows * kCols / 16) + 8));
    std::vector<float> x;
    for (int64_t i = 0; i < kRows * kCols; ++i)
      x.push_back(to_float(bfloat16{static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8)}));
    const Nvfp4Result result = quantize_nvfp4(Context::cpu(),
                                              {.rows = kRows,
                                               .cols = kCols,
                                               .blocks = name == std::string("blocks"),
                                               .hadamard = name == std::string("hadamard")},
                                              x);
    const uint8_t* at =
        check_reference(kRows, kCols, result.layouts.row_values, bytes.data() + 2 * kRows * kCols);
    at = check_reference(kCols, kRows, result.layouts.column_values, at);
    float amaxes[2];
    std::memcpy(amaxes, at, sizeof(amaxes));
    EXPECT_EQ(result.row_factor, amaxes[0] / 2688.0f);
    EXPECT_EQ(result.column_factor, amaxes[1] / 2688.0f);
  }
}

TEST(QuantizeNvfp4, CodesOfAllNumbers) {
  const float numbers[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (uint32_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_code(numbers[code]), code);
    EXPECT_EQ(e2m1_code(-numbers[code]), code + 8);
    EXPECT_EQ(e2m1_value(code), numbers[code]);
    EXPECT_EQ(e2m1_value(code + 8), -numbers[code]);
  }
}

/// Checks one layout [rows, cols] of codes and scales against values times their scale, bit for bit but for NaN.
void check_codes(int64_t rows, int64_t cols, const std::vector<uint8_t>& codes,
                 const std::vector<uint8_t>& scales, const std::vector<float>& values) {
  std::vector<bool> used(scales.size());
  for (int64_t i = 0; i < rows * cols; ++i) {
    const int64_t at =
        mx_scale_index(i / cols, i % cols / kNvfp4Group, (cols + kNvfp4Group - 1) / kNvfp4Group);
    used.at(static_cast<size_t>(at)) = true;
    const uint32_t code = codes[static_cast<size_t>(i / 2)] >> i % 2 * 4 & 15;
    const float value = e2m1_value(code) * to_float(float8_e4m3{scales[static_cast<size_t>(at)]});
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(values[static_cast<size_t>(i)])) << i;
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!used[i]) {
      ASSERT_EQ(scales[i], 0) << i;
    }
  }
}

TEST(QuantizeNvfp4, CodesAndScalesGiveTheValues) {
  for (Nvfp4Case c : nvfp4_cases()) {
    if (!c.native) continue;
    SCOPED_TRACE(c.name());
    const std::vector<float> x = nvfp4_values(c.rows, c.cols);
    const Nvfp4Result native = quantize_nvfp4(Context::cpu(), c, x);
    c.native = false;
    const Nvfp4Result expected = quantize_nvfp4(Context::cpu(), c, x);
    const MxResult &codes = native.layouts, &values = expected.layouts;
    if (c.rowwise) check_codes(c.rows, c.cols, codes.rowwise, codes.row_scales, values.row_values);
    if (c.columnwise)
      check_codes(c.cols, c.rows, codes.columnwise, codes.column_scales, values.column_values);
    EXPECT_EQ(native.factors, expected.factors);
    EXPECT_EQ(codes.amax, values.amax);
    EXPECT_EQ(codes.counters.flushed, values.counters.flushed);
  }
  // E2M1 has no NaN: the scale is NaN.
  std::vector<float> x = nvfp4_values(32, 32);
  x[40] = std::numeric_limits<float>::quiet_NaN();
  const Nvfp4Result result = quantize_nvfp4(Context::cpu(), {.rows = 32, .cols = 32, .native = true}, x);
  EXPECT_EQ(result.layouts.row_scales[mx_scale_index(1, 0, 2)], 0x7f);
  EXPECT_NE(result.layouts.row_scales[mx_scale_index(1, 1, 2)], 0x7f);
}

// With a factor of 1. Stochastic rounding does not change numbers of the format either.
TEST(QuantizeNvfp4, KeepsAllCodesWithAllScales) {
  std::vector<uint8_t> codes;
  std::vector<float> x;
  for (uint8_t scale = 1; scale < 0x7f; ++scale)
    for (uint8_t code = 0; code < 16; ++code) {
      x.push_back(e2m1(code) * to_float(float8_e4m3{scale}));
      if (code % 2 == 0) codes.push_back(static_cast<uint8_t>(code | (code + 1) << 4));
    }
  for (const bool stochastic : {false, true}) {
    Nvfp4Case c{.rows = 126, .cols = 16, .input = DType::f32, .stochastic = stochastic, .columnwise = false};
    const Nvfp4Result values = quantize_nvfp4(Context::cpu(), c, x);
    EXPECT_EQ(values.layouts.row_values, x);
    EXPECT_EQ(values.row_factor, 1.0f);
    EXPECT_EQ(values.layouts.counters.flushed + values.layouts.counters.saturated, 0u);
    c.native = true;
    const Nvfp4Result native = quantize_nvfp4(Context::cpu(), c, x);
    EXPECT_EQ(native.layouts.rowwise, codes);
    for (uint8_t scale = 1; scale < 0x7f; ++scale)
      EXPECT_EQ(native.layouts.row_scales[static_cast<size_t>(mx_scale_index(scale - 1, 0, 1))], scale);
  }
}

TEST(QuantizeNvfp4, RoundsToTheNearestCodeWithTiesToEven) {
  for (size_t code = 0; code + 1 < std::size(kE2m1); ++code) {
    const float low = kE2m1[code], high = kE2m1[code + 1], tie = (low + high) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      EXPECT_EQ(nvfp4_value(sign * low, kPlain, nullptr).value, sign * low);
      EXPECT_EQ(nvfp4_value(sign * tie, kPlain, nullptr).value, sign * (code % 2 == 0 ? low : high));
      EXPECT_EQ(nvfp4_value(sign * std::nextafter(tie, 0.0f), kPlain, nullptr).value, sign * low);
      EXPECT_EQ(nvfp4_value(sign * std::nextafter(tie, 9.0f), kPlain, nullptr).value, sign * high);
    }
  }
  EXPECT_EQ(nvfp4_value(1e30f, kPlain, nullptr).value, 6.0f);
  EXPECT_FALSE(nvfp4_value(6.5f, kPlain, nullptr).saturated);
  EXPECT_TRUE(nvfp4_value(7.5f, kPlain, nullptr).saturated);
  EXPECT_TRUE(std::isnan(nvfp4_value(std::numeric_limits<float>::quiet_NaN(), kPlain, nullptr).value));
}

// Codes never change, other values get a neighbor, up with the probability of their position between both.
TEST(QuantizeNvfp4, StochasticRoundingPreservesTheMean) {
  constexpr int kCount = 20000;
  for (const float x : {0.0f, 0.1f, 0.5f, 0.6f, 1.3f, 2.2f, 3.9f, 5.5f, 6.0f, -0.1f, -2.75f}) {
    double sum = 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint32_t word = nvfp4_random(1, 2, false, i);
      const float q = nvfp4_value(x, kPlain, &word).value;
      EXPECT_LE(std::abs(q - x), 2.0f);
      sum += q;
    }
    EXPECT_NEAR(sum / kCount, x, 0.03) << x;
  }
}

TEST(QuantizeNvfp4, StochasticRoundingDependsOnTheStreamOnly) {
  const Nvfp4Case c{.rows = 64, .cols = 64, .stochastic = true};
  const std::vector<float> x = nvfp4_values(c.rows, c.cols);
  EXPECT_EQ(quantize_nvfp4(Context::cpu(), c, x).layouts.rowwise,
            quantize_nvfp4(Context::cpu(), c, x).layouts.rowwise);
  EXPECT_NE(quantize_nvfp4(Context::cpu(), c, x, 5).layouts.rowwise,
            quantize_nvfp4(Context::cpu(), c, x).layouts.rowwise);
}

TEST(QuantizeNvfp4, BlocksAreEqualInBothLayouts) {
  const Nvfp4Case c{.rows = 64, .cols = 48, .blocks = true};
  const Nvfp4Result result = quantize_nvfp4(Context::cpu(), c, nvfp4_values(c.rows, c.cols));
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t k = 0; k < c.cols; ++k)
      ASSERT_EQ(result.layouts.row_values[r * c.cols + k], result.layouts.column_values[k * c.rows + r]);
}

// Zeros, an infinity and NaN.
TEST(QuantizeNvfp4, SpecialValues) {
  const Nvfp4Case c{.rows = 16, .cols = 32, .columnwise = false};
  std::vector<float> x(16 * 32, 0.0f);
  Nvfp4Result result = quantize_nvfp4(Context::cpu(), c, x);
  EXPECT_EQ(result.layouts.row_values, x);
  EXPECT_EQ(result.row_factor, 0.0f);
  x[3] = 1.0f, x[40] = std::numeric_limits<float>::quiet_NaN();
  result = quantize_nvfp4(Context::cpu(), c, x);
  EXPECT_EQ(result.layouts.row_values[3] * result.row_factor, 1.0f);
  EXPECT_TRUE(std::isnan(result.layouts.row_values[40]));
  EXPECT_EQ(result.layouts.row_values[41], 0.0f);
  x[64] = -std::numeric_limits<float>::infinity();
  result = quantize_nvfp4(Context::cpu(), c, x);
  EXPECT_TRUE(std::isinf(result.row_factor));
  EXPECT_LT(result.layouts.row_values[64], 0.0f);
}

// A wgrad of transformed operands is that of restored ones: the transforms cancel.
TEST(QuantizeNvfp4, GemmsApplyFactorsAndTransformsCancel) {
  const Context context = Context::cpu();
  constexpr int64_t kM = 32, kN = 48, kK = 64;
  const auto operand = [&](int64_t cols, bool restore, uint64_t seed) {
    return quantize_nvfp4(
        context, {.rows = kK, .cols = cols, .input = DType::f32, .hadamard = true, .restore = restore},
        testing::normal_values(kK * cols, seed));
  };
  testing::TestTensor a(context, DType::f32, {kM, kK}), b(context, DType::f32, {kN, kK}),
      factors(context, DType::f32, {2}), out(context, DType::f32, {kM, kN}),
      plain(context, DType::f32, {kM, kN});
  const Nvfp4Result left = operand(kM, false, 1), right = operand(kN, false, 2);
  a.fill(left.layouts.column_values), b.fill(right.layouts.column_values);
  factors.fill({left.column_factor, right.column_factor});
  const auto factor = [&](int64_t i) { return factors.get().view({2, 1}).slice_rows(i, 1).view({1}); };
  out.fill_value(1.0f);
  gemm(context, {.a = {a, factor(0), ScaleLayout::factor},
                 .b = {b, factor(1), ScaleLayout::factor},
                 .out = out,
                 .trans_b = true,
                 .accumulate = true});
  a.fill(operand(kM, true, 1).layouts.column_values), b.fill(operand(kN, true, 2).layouts.column_values);
  plain.fill_value(1.0f);
  gemm(context, {.a = a.get(), .b = b.get(), .out = plain, .trans_b = true, .accumulate = true});
  EXPECT_LT(testing::relative_error(out.floats(), plain.floats()), 1e-5);
  EXPECT_THROW(
      gemm(context, {.a = {a, factor(0), ScaleLayout::factor}, .b = b.get(), .out = out, .trans_b = true}),
      InternalError);
}

// The error of normally distributed values, with and without the transform.
TEST(QuantizeNvfp4, RestoresValues) {
  for (const bool hadamard : {false, true}) {
    const Nvfp4Case c{.rows = 256, .cols = 256, .input = DType::f32, .hadamard = hadamard, .restore = true};
    const std::vector<float> x = testing::normal_values(c.rows * c.cols, 4);
    const Nvfp4Result result = quantize_nvfp4(Context::cpu(), c, x);
    std::vector<float> transposed(x.size());
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t k = 0; k < c.cols; ++k) transposed[k * c.rows + r] = x[r * c.cols + k];
    EXPECT_NEAR(-20 * std::log10(testing::relative_error(result.layouts.row_values, x)), 20.5, 0.5);
    EXPECT_NEAR(-20 * std::log10(testing::relative_error(result.layouts.column_values, transposed)), 20.5,
                0.5);
  }
}

}  // namespace
}  // namespace te::kernels
