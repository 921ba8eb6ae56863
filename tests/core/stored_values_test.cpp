#include "core/stored_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/float_types.h"

namespace te {
namespace {

/// Widens all 65,536 bit patterns of a 16-bit type, in several chunks.
std::vector<float> widen_all(void (*widen)(std::byte*, int64_t)) {
  constexpr int64_t kCount = 65536;
  std::vector<float> values(kCount);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  for (int64_t i = 0; i < kCount; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    std::memcpy(bytes + 2 * (kCount + i), &bits, sizeof(bits));
  }
  widen(bytes, kCount);
  return values;
}

TEST(StoredValues, EveryValueOfF16) {
  const std::vector<float> values = widen_all(widen_f16_in_place);
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = values[half];
    const int exponent = static_cast<int>(half >> 10 & 31), mantissa = static_cast<int>(half & 1023);
    const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    if (std::isnan(magnitude)) {
      ASSERT_TRUE(std::isnan(value)) << half;
    } else {
      ASSERT_EQ(value, half >> 15 != 0 ? -magnitude : magnitude) << half;
      ASSERT_EQ(std::signbit(value), half >> 15 != 0) << half;
    }
  }
}

TEST(StoredValues, EveryValueOfBf16) {
  const std::vector<float> values = widen_all(widen_bf16_in_place);
  for (uint32_t half = 0; half < 65536; ++half) {
    const float expected = to_float(bfloat16{static_cast<uint16_t>(half)});
    ASSERT_EQ(std::memcmp(&values[half], &expected, sizeof(expected)), 0) << half;
  }
}

TEST(StoredValues, AnyCount) {
  for (const int64_t count : {0, 1, 1023, 1024, 1025, 2049}) {
    std::vector<float> values(static_cast<size_t>(count) + 1, -1.0f);
    auto* bytes = reinterpret_cast<std::byte*>(values.data());
    for (int64_t i = 0; i < count; ++i) {
      const bfloat16 half = to_bf16(static_cast<float>(i % 256));
      std::memcpy(bytes + 2 * (count + i), &half, sizeof(half));
    }
    widen_bf16_in_place(bytes, count);
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<float>(i % 256)) << count;
    EXPECT_EQ(values.back(), -1.0f) << count;
  }
}

TEST(StoredValues, OneValueAmongManyIsNotFinite) {
  std::vector<float> values(1001, std::numeric_limits<float>::max());
  EXPECT_TRUE(are_finite(DType::f32, values.data(), 1001));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    values[1000] = bad;
    EXPECT_FALSE(are_finite(DType::f32, values.data(), 1001));
    EXPECT_TRUE(are_finite(DType::f32, values.data(), 1000));
    const bfloat16 half = to_bf16(bad);
    EXPECT_FALSE(are_finite(DType::bf16, &half, 1));
  }
}

}  // namespace
}  // namespace te
