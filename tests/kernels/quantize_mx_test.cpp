// Quantization to MXFP8 against a reference implementation (scripts/make_quantization_fixtures.py), all codes, ties and
// special values.
#include "kernels/quantize/quantize_mx.h"

#include <fstream>
#include <iterator>

#include "core/float_types.h"
#include "kernels/quantize/mx_formula.h"
#include "kernels/quantize_mx_cases.h"

namespace te::kernels {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

float decoded(DType format, uint8_t code) {
  return format == DType::e4m3 ? to_float(float8_e4m3{code}) : to_float(float8_e5m2{code});
}

std::vector<uint8_t> fixture(const std::string& name) {
  std::ifstream file(TE_SOURCE_DIR "/tests/fixtures/quantize/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Checks one layout [rows, cols] against codes and scales; returns the address after them.
const uint8_t* check_layout(DType format, int64_t rows, int64_t cols, const std::vector<float>& values,
                            const uint8_t* codes) {
  const uint8_t* const scales = codes + rows * cols;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t first = 0; first < cols; first += kMxGroup) {
      const uint8_t scale = scales[(r * cols + first) / kMxGroup];
      for (int64_t i = r * cols + first; i < r * cols + first + kMxGroup; ++i)
        EXPECT_EQ(values[static_cast<size_t>(i)], decoded(format, codes[i]) * e8m0_value(scale))
            << r << " " << i;
    }
  }
  return scales + rows * cols / kMxGroup;
}

TEST(QuantizeMx, EqualsTheReference) {
  constexpr int64_t kRows = 64, kCols = 96;
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    const std::vector<uint8_t> bytes = fixture(format == DType::e4m3 ? "mxfp8_e4m3.bin" : "mxfp8_e5m2.bin");
    ASSERT_EQ(bytes.size(),
              static_cast<size_t>(kRows * kCols * 2 + 2 * (kRows * kCols + kRows * kCols / 32)));
    std::vector<float> x;
    for (int64_t i = 0; i < kRows * kCols; ++i)
      x.push_back(to_float(bfloat16{static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8)}));
    for (const DType input : {DType::bf16, DType::f32}) {
      const MxResult result = quantize_mx(Context::cpu(), {kRows, kCols, input, format}, x);
      const uint8_t* const columnwise =
          check_layout(format, kRows, kCols, result.row_values, bytes.data() + 2 * kRows * kCols);
      const uint8_t* const end = check_layout(format, kCols, kRows, result.column_values, columnwise);
      EXPECT_EQ(end, bytes.data() + bytes.size());
    }
    // The scales, too, except of zeros, where any scale gives the same values.
    const uint8_t* const scales = bytes.data() + 3 * kRows * kCols;
    for (int64_t group = 0; group < kRows * kCols / kMxGroup; ++group) {
      uint32_t amax = 0;
      for (int64_t i = group * kMxGroup; i < (group + 1) * kMxGroup; ++i)
        amax = std::max(amax, magnitude_without_nan(x[static_cast<size_t>(i)]));
      if (amax > 0) {
        EXPECT_EQ(mx_scale_code(amax, small_float(format), 0), scales[group]) << group;
      }
    }
  }
}

/// Checks one layout [rows, cols] of codes and scales against dequantized values, bit for bit except for NaN.
void check_codes(int64_t rows, int64_t cols, const std::vector<float>& codes,
                 const std::vector<uint8_t>& scales, const std::vector<float>& values) {
  std::vector<bool> used(scales.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto at = static_cast<size_t>(mx_scale_index(r, c / kMxGroup, (cols + kMxGroup - 1) / kMxGroup)),
                 i = static_cast<size_t>(r * cols + c);
      used.at(at) = true;
      const float value = codes[i] * e8m0_value(scales[at]);
      if (std::isnan(value) && std::isnan(values[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(values[i])) << r << " " << c;
    }
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!used[i]) {
      ASSERT_EQ(scales[i], 0) << i;
    }
  }
}

TEST(QuantizeMx, CodesAndScalesGiveTheDequantizedValues) {
  for (MxCase c : mx_cases()) {
    if (!c.native) continue;
    SCOPED_TRACE(c.name());
    const std::vector<float> x = mx_values(c.rows, c.cols);
    const MxResult native = quantize_mx(Context::cpu(), c, x);
    c.native = false;
    const MxResult expected = quantize_mx(Context::cpu(), c, x);
    if (c.rowwise) check_codes(c.rows, c.cols, native.row_values, native.row_scales, expected.row_values);
    if (c.columnwise)
      check_codes(c.cols, c.rows, native.column_values, native.column_scales, expected.column_values);
    EXPECT_EQ(native.amax, expected.amax);
    EXPECT_EQ(native.counters.saturated, expected.counters.saturated);
    EXPECT_EQ(native.counters.flushed, expected.counters.flushed);
  }
}

// Positions from the figures in cuBLAS's documentation.
TEST(QuantizeMx, ScalesAreInTilesOf128RowsAnd4Groups) {
  EXPECT_EQ(mx_scale_index(0, 0, 8), 0);
  EXPECT_EQ(mx_scale_index(0, 3, 8), 3);
  EXPECT_EQ(mx_scale_index(32, 0, 8), 4);
  EXPECT_EQ(mx_scale_index(127, 3, 8), 511);
  EXPECT_EQ(mx_scale_index(1, 0, 8), 16);
  EXPECT_EQ(mx_scale_index(0, 4, 8), 512);
  EXPECT_EQ(mx_scale_index(128, 0, 8), 1024);
  EXPECT_EQ(mx_scale_index(128, 0, 3), 512);
}

// Rounding of every code, of every tie between neighbors, and of the values next to the ties.
TEST(QuantizeMx, RoundsToTheNearestCodeWithTiesToEven) {
  for (const DType type : {DType::e4m3, DType::e5m2}) {
    const SmallFloat format = small_float(type);
    for (uint8_t code = 0; decoded(type, code) < format.largest; ++code) {
      const float low = decoded(type, code), high = decoded(type, static_cast<uint8_t>(code + 1));
      const float tie = (low + high) / 2;
      for (const float sign : {1.0f, -1.0f}) {
        EXPECT_EQ(round_to_format(sign * low, format), sign * low);
        EXPECT_EQ(std::signbit(round_to_format(sign * low, format)), sign < 0);
        EXPECT_EQ(round_to_format(sign * tie, format), sign * (code % 2 == 0 ? low : high));
        EXPECT_EQ(round_to_format(sign * std::nextafter(tie, 0.0f), format), sign * low);
        EXPECT_EQ(round_to_format(sign * std::nextafter(tie, kInfinite), format), sign * high);
      }
    }
    EXPECT_EQ(round_to_format(format.largest, format), format.largest);
    EXPECT_EQ(round_to_format(2 * format.largest, format), format.largest);
    EXPECT_EQ(round_to_format(-kInfinite, format), -format.largest);
  }
}

// As the conversion to FP8 of the other recipes, for all BF16 numbers.
TEST(QuantizeMx, RoundsAsFp8Conversions) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float x = to_float(bfloat16{static_cast<uint16_t>(bits)});
    if (std::isnan(x)) continue;
    ASSERT_EQ(round_to_format(x, small_float(DType::e4m3)), to_float(to_e4m3(x))) << x;
    ASSERT_EQ(round_to_format(x, small_float(DType::e5m2)), to_float(to_e5m2(x))) << x;
  }
}

TEST(QuantizeMx, ScalesAreRoundedUp) {
  const SmallFloat e4m3 = small_float(DType::e4m3);
  const auto code = [&](float amax, int margin = 0) {
    return mx_scale_code(std::bit_cast<uint32_t>(amax), e4m3, margin);
  };
  EXPECT_EQ(code(448.0f), 127u);
  EXPECT_EQ(code(449.0f), 128u);
  EXPECT_EQ(code(224.0f), 126u);
  EXPECT_EQ(code(300.0f), 127u);
  EXPECT_EQ(code(300.0f, 2), 129u);
  EXPECT_EQ(code(0.0f), 0u);
  EXPECT_EQ(code(1e-45f), 0u);
  EXPECT_EQ(code(std::ldexp(448.0f, -127)), 0u);
  EXPECT_EQ(code(std::ldexp(449.0f, -127)), 1u);
  EXPECT_EQ(code(std::ldexp(449.0f, -126)), 2u);
  EXPECT_EQ(code(std::numeric_limits<float>::max()), 247u);
  EXPECT_EQ(code(kInfinite), 254u);
  EXPECT_EQ(e8m0_value(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e8m0_value(127), 1.0f);
  EXPECT_EQ(e8m0_value(254), std::ldexp(1.0f, 127));
}

// Every product of a code and a scale is its own quantization if its group has a number of the largest exponent.
TEST(QuantizeMx, KeepsAllCodesWithAllScales) {
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const int exponent : {-127, -126, -60, 0, 60, 100}) {
      std::vector<float> x(256, 0.0f);
      for (int code = 0; code < 256; ++code) {
        const float value = decoded(format, static_cast<uint8_t>(code));
        if (std::isfinite(value)) x[static_cast<size_t>(code)] = std::ldexp(value, exponent);
      }
      for (size_t i = 0; i < x.size(); i += 32) x[i] = std::ldexp(small_float(format).largest, exponent);
      const MxResult result =
          quantize_mx(Context::cpu(),
                      {.rows = 8, .cols = 32, .input = DType::f32, .format = format, .columnwise = false}, x);
      EXPECT_EQ(result.row_values, x) << exponent;
      EXPECT_EQ(result.counters.flushed + result.counters.saturated, 0u);
    }
  }
}

// Subnormal BF16 numbers, whose codes with the smallest scales are finer than BF16.
TEST(QuantizeMx, IsExactForSubnormalNumbers) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x400u; ++bits) x.push_back(to_float(bfloat16{static_cast<uint16_t>(bits)}));
  const MxCase wide{.rows = 32, .cols = 32, .input = DType::f32}, narrow{.rows = 32, .cols = 32};
  EXPECT_EQ(quantize_mx(Context::cpu(), wide, x).row_values,
            quantize_mx(Context::cpu(), narrow, x).row_values);
  EXPECT_EQ(quantize_mx(Context::cpu(), wide, x).column_values,
            quantize_mx(Context::cpu(), narrow, x).column_values);
}

TEST(QuantizeMx, SpecialValuesAffectOnlyTheirGroup) {
  std::vector<float> x(4 * 64, 1.0f);
  for (size_t c = 0; c < 32; ++c) x[c] = 0.0f;
  x[1] = -0.0f;
  x[64] = std::numeric_limits<float>::quiet_NaN(), x[128] = -kInfinite, x[192] = 1e-30f;
  for (const DType input : {DType::f32, DType::bf16}) {
    const MxResult result =
        quantize_mx(Context::cpu(), {.rows = 4, .cols = 64, .input = input, .columnwise = false}, x);
    EXPECT_EQ(result.row_values[0], 0.0f);
    EXPECT_TRUE(std::signbit(result.row_values[1]));
    EXPECT_EQ(result.row_values[32], 1.0f);
    EXPECT_TRUE(std::isnan(result.row_values[64]));
    EXPECT_EQ(result.row_values[65], 1.0f);
    EXPECT_EQ(result.row_values[128], -kInfinite);
    EXPECT_EQ(result.row_values[129], 0.0f);  // too small for the scale of an infinity
    EXPECT_EQ(result.row_values[160], 1.0f);
    EXPECT_EQ(result.row_values[192], 0.0f);
    EXPECT_EQ(result.counters.flushed, 32u);
    EXPECT_EQ(result.counters.saturated, 0u);
    EXPECT_EQ(result.counters.total, 256u);
  }
}

TEST(QuantizeMx, EachLayoutAlone) {
  for (const MxCase& c : mx_cases()) {
    SCOPED_TRACE(c.name());
    const std::vector<float> x = mx_values(c.rows, c.cols);
    MxCase rows = c, columns = c;
    rows.rowwise = columns.columnwise = true;
    rows.columnwise = columns.rowwise = false;
    MxCase both = rows;
    both.columnwise = true;
    const MxResult all = quantize_mx(Context::cpu(), both, x);
    EXPECT_EQ(quantize_mx(Context::cpu(), rows, x).rowwise, all.rowwise);
    EXPECT_EQ(quantize_mx(Context::cpu(), columns, x).columnwise, all.columnwise);
    EXPECT_EQ(quantize_mx(Context::cpu(), columns, x).amax, all.amax);
    EXPECT_EQ(quantize_mx(Context::cpu(), rows, x).counters.flushed, all.counters.flushed);
  }
}

TEST(QuantizeMx, RejectsInvalidArguments) {
  const Context context = Context::cpu();
  testing::TestTensor x(context, DType::bf16, {16, 32}), wide(context, DType::f32, {16, 32});
  EXPECT_THROW(quantize_mx(context, QuantizeMx{.x = x}), InternalError);
  EXPECT_THROW(quantize_mx(context, QuantizeMx{.x = x, .rowwise = wide}), InternalError);
  EXPECT_THROW(quantize_mx(context, QuantizeMx{.x = x, .columnwise = x}), InternalError);
  EXPECT_THROW(quantize_mx(context, QuantizeMx{.x = x, .format = DType::bf16, .rowwise = x}), InternalError);
}

}  // namespace
}  // namespace te::kernels
