// Compares the CPU's FP8, BF16 and FP16 conversions with the definition: the nearest representable value, ties to even.
// Also tests the random numbers of core/random.h.
#include "core/float_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"

namespace te {
namespace {

// Nearest code, found by search over all finite codes; ties go to the even code. Saturates.
template <class T>
uint8_t nearest_code(float value, int max_code) {
  const float magnitude = std::min(std::abs(value), to_float(T{static_cast<uint8_t>(max_code)}));
  int best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code <= max_code; ++code) {
    const double distance = std::abs(double(magnitude) - to_float(T{static_cast<uint8_t>(code)}));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0))
      best = code, best_distance = distance;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

template <class T>
void check_nearest(T (*convert)(float), int max_code) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = to_float(bfloat16{static_cast<uint16_t>(bits)});
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(convert(value).bits, nearest_code<T>(value, max_code)) << value;
  }
  for (uint64_t i = 0; i < 20000; ++i) {
    const float value = normal(1, 2, i) * std::ldexp(1.0f, static_cast<int>(i % 40) - 24);
    ASSERT_EQ(convert(value).bits, nearest_code<T>(value, max_code)) << value;
  }
  for (int code = 0; code <= max_code; ++code) {
    ASSERT_EQ(convert(to_float(T{static_cast<uint8_t>(code)})).bits, code);
  }
}

TEST(FloatTypes, E4m3IsTheNearestValueAndSaturates) {
  check_nearest<float8_e4m3>(to_e4m3, 0x7e);
  EXPECT_EQ(to_float(to_e4m3(1e9f)), 448.0f);
  EXPECT_EQ(to_float(to_e4m3(-std::numeric_limits<float>::infinity())), -448.0f);
  EXPECT_TRUE(std::isnan(to_float(to_e4m3(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(FloatTypes, E5m2IsTheNearestValueAndSaturates) {
  check_nearest<float8_e5m2>(to_e5m2, 0x7b);
  EXPECT_EQ(to_float(to_e5m2(1e9f)), 57344.0f);
  EXPECT_EQ(to_float(to_e5m2(std::numeric_limits<float>::infinity())), 57344.0f);
  EXPECT_TRUE(std::isnan(to_float(to_e5m2(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(FloatTypes, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.00390625f).bits, 0x3f80);  // tie: to even
  EXPECT_EQ(to_bf16(1.01171875f).bits, 0x3f82);  // tie: to even
  EXPECT_EQ(to_bf16(std::nextafter(1.00390625f, 2.f)).bits, 0x3f81);
  EXPECT_EQ(to_bf16(3.4e38f).bits, 0x7f80);  // rounds past the largest number
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7fff);
  for (int bits = 0; bits < 65536; ++bits) {
    const bfloat16 value{static_cast<uint16_t>(bits)};
    if (std::isnan(to_float(value))) continue;
    ASSERT_EQ(to_bf16(to_float(value)).bits, value.bits);
  }
}

TEST(FloatTypes, Fp16DecodesEveryCode) {
  for (int bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float value = to_float(float16{static_cast<uint16_t>(bits)});
    EXPECT_EQ(std::signbit(value), bits >= 0x8000);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), mantissa != 0);
      ASSERT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(std::abs(double{value}), magnitude) << bits;
    }
  }
}

// Tests below, at and above the midpoint of every two neighboring values; the midpoint rounds to even.
TEST(FloatTypes, Fp16RoundsToNearestEven) {
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const float low = to_float(float16{static_cast<uint16_t>(bits)});
    ASSERT_EQ(to_f16(low).bits, bits);
    ASSERT_EQ(to_f16(-low).bits, bits | 0x8000);
    // Infinity takes the place of the next number.
    const double next = bits == 0x7bff ? 65536.0 : double{to_float(float16{static_cast<uint16_t>(bits + 1)})};
    const auto middle = static_cast<float>((double{low} + next) / 2);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(to_f16(middle).bits, even);
    ASSERT_EQ(to_f16(-middle).bits, even | 0x8000);
    ASSERT_EQ(to_f16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(to_f16(std::nextafter(middle, 1e9f)).bits, bits + 1);
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {65520.0f, 1e6f, 3e38f, infinity}) {
    EXPECT_EQ(to_f16(large).bits, 0x7c00);
    EXPECT_EQ(to_f16(-large).bits, 0xfc00);
  }
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7fff);
  for (const float tiny : {1e-8f, 1e-20f, 1e-38f, 1e-45f, 0.0f}) {
    EXPECT_EQ(to_f16(tiny).bits, 0);
    EXPECT_EQ(to_f16(-tiny).bits, 0x8000);
  }
}

TEST(Random, NormalHasUnitMomentsAndIsAFunctionOfItsIndex) {
  double sum = 0, squares = 0, fourth = 0, largest = 0;
  const int count = 400000;
  for (int i = 0; i < count; ++i) {
    const double value = normal(7, stream_of("w"), static_cast<uint64_t>(i));
    sum += value, squares += value * value, fourth += value * value * value * value;
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_NEAR(sum / count, 0, 0.01);
  EXPECT_NEAR(squares / count, 1, 0.01);
  EXPECT_NEAR(fourth / count, 3, 0.08);
  EXPECT_GT(largest, 4);
  EXPECT_LT(largest, 6.5);
  EXPECT_NE(normal(7, 1, 0), normal(8, 1, 0));
  EXPECT_NE(normal(7, 1, 0), normal(7, 2, 0));
}

TEST(Random, NormalAgreesWithTheMathLibrary) {
  for (uint64_t i = 0; i < 20000; i += 2) {
    const Philox4 random = philox(3, 4, i >> 2);
    const int pair = static_cast<int>(i >> 1) & 1;
    const double radius = std::sqrt(-2 * std::log(double(uniform_open(random.word[2 * pair]))));
    const double angle = 2 * M_PI * uniform_open(random.word[2 * pair + 1]);
    ASSERT_NEAR(normal(3, 4, i), radius * std::cos(angle), 3e-6);
    ASSERT_NEAR(normal(3, 4, i + 1), radius * std::sin(angle), 3e-6);
  }
}

// Known answers of Philox4x32-10 from the Random123 distribution's test vectors.
TEST(Random, PhiloxKnownAnswers) {
  const Philox4 zeros = philox(0, 0, 0);
  EXPECT_EQ(zeros.word[0], 0x6627e8d5u);
  EXPECT_EQ(zeros.word[1], 0xe169c58du);
  EXPECT_EQ(zeros.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zeros.word[3], 0x9b00dbd8u);
  const Philox4 ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

}  // namespace
}  // namespace te
