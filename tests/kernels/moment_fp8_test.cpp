// Adam moments in FP8: values of the codes, blocks that survive re-encoding, unbiased rounding, and AdamW with them.
#include "kernels/adamw/moment_fp8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/float_types.h"
#include "kernels/adamw/adamw.h"
#include "kernels/adamw/moment_rounding.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

struct Block {
  uint8_t codes[kAdamWGranule];
  uint8_t exponent;
};

template <class Format>
Block encode(const std::vector<float>& values, uint32_t random = 0x8000) {
  Block block;
  encode_block<Format>(
      values.data(), static_cast<int64_t>(values.size()), [&](int64_t) { return random; }, block.codes,
      block.exponent);
  return block;
}
template <class Format>
std::vector<float> decode(const Block& block, size_t count) {
  std::vector<float> values(count);
  decode_block<Format>(block.codes, block.exponent, static_cast<int64_t>(count), values.data());
  return values;
}

TEST(MomentFp8, ExpAvgCodesAreE4m3) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const float expected = to_float(float8_e4m3{byte}), value = Fp8ExpAvg::decode(byte, 0);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << code;
    EXPECT_EQ(Fp8ExpAvg::decode(byte, -20), std::ldexp(expected, -20));
    for (const uint32_t random : {0u, 0x8000u, 0xffffu}) EXPECT_EQ(Fp8ExpAvg::encode(value, 0, random), byte);
  }
}

TEST(MomentFp8, ExpAvgSqCodesAreRootsWithFourMantissaBits) {
  for (int code = 0; code < 255; ++code) {
    const int exponent = code >> 4, mantissa = code & 15;
    const double root = exponent == 0 ? std::ldexp(mantissa, -10) : std::ldexp(16 + mantissa, exponent - 11);
    const float value = Fp8ExpAvgSq::decode(static_cast<uint8_t>(code), 0);
    EXPECT_EQ(static_cast<double>(value), root * root) << code;
    for (const uint32_t random : {0u, 0x8000u, 0xffffu})
      EXPECT_EQ(Fp8ExpAvgSq::encode(value, 0, random), code);
  }
  EXPECT_TRUE(std::isnan(Fp8ExpAvgSq::decode(0xff, 0)));
}

// Checkpoints rely on this: values of a block are BF16 numbers (exp_avg), and encoding them again gives the same
// values, for any random numbers and any exponent that the block had.
template <class Format>
void expect_round_trip(float scale) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    std::vector<float> values = testing::normal_values(kAdamWGranule, seed, scale);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] *= std::ldexp(1.0f, -static_cast<int>((i * seed) % 12));
      if (std::is_same_v<Format, Fp8ExpAvgSq>) values[i] *= values[i];
    }
    const std::vector<float> rounded = decode<Format>(encode<Format>(values, 0x1234), values.size());
    for (const uint32_t random : {0u, 0x8000u, 0xffffu})
      ASSERT_EQ(decode<Format>(encode<Format>(rounded, random), values.size()), rounded) << seed;
    if (std::is_same_v<Format, Fp8ExpAvg>) {
      for (const float x : rounded) ASSERT_EQ(to_float(to_bf16(x)), x);
    }
    // The error of the largest value is at most an eighth of its root.
    const size_t most = std::ranges::max_element(values) - values.begin();
    EXPECT_NEAR(rounded[most], values[most], values[most] / 4);
  }
}

TEST(MomentFp8, RoundedValuesRoundTrip) {
  for (const float scale : {1.0f, 1e-3f, 1e-9f, 1e-16f, 1e9f}) {
    expect_round_trip<Fp8ExpAvg>(scale);
    expect_round_trip<Fp8ExpAvgSq>(scale);
  }
}

/// AdamW on n elements whose gradients are noise of constant magnitude, with both Adam moments in FP8 or FP32.
struct Fp8AdamW {
  Fp8AdamW(int64_t n, bool fp8)
      : main_param(cpu(), DType::f32, {n}),
        main_grad(cpu(), DType::f32, {n}),
        exp_avg(cpu(), fp8 ? DType::e4m3 : DType::f32, {n}),
        exp_avg_sq(cpu(), fp8 ? DType::u8 : DType::f32, {n}),
        first(cpu(), DType::u8, {granules_of(n)}),
        second(cpu(), DType::u8, {granules_of(n)}),
        flags(cpu(), DType::u8, {granules_of(n)}),
        run{.stream = 7, .region = {.local_cols = n, .global_cols = n}} {
    main_param.fill_value(0);
    for (const Tensor& tensor : {exp_avg.get(), exp_avg_sq.get(), first.get(), second.get(), flags.get()})
      cpu().zero(tensor);
  }
  AdamW args() {
    return {.main_param = main_param,
            .main_grad = main_grad,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .exp_avg_exponents = first,
            .exp_avg_sq_exponents = second,
            .flags = flags,
            .runs = {&run, DType::u8, {sizeof(run)}},
            .lr = 1e-2f,
            .beta2 = 0.999f};
  }
  TestTensor main_param, main_grad, exp_avg, exp_avg_sq, first, second, flags;
  MomentRun run;
};

// The bytes of a block may change when a checkpoint is loaded, but not what later steps compute.
TEST(MomentFp8, OtherBytesOfTheSameValuesMakeTheSameSteps) {
  const int64_t n = 40 * kAdamWGranule;
  Fp8AdamW run(n, true), resumed(n, true);
  const auto step = [](Fp8AdamW& on, int64_t number) {
    on.main_grad.fill_normal(static_cast<uint64_t>(number), 0.1f, 0.05f);
    AdamW args = on.args();
    args.step = number;
    adamw(cpu(), args);
  };
  for (int64_t number = 1; number <= 3; ++number) step(run, number);
  cpu().copy(resumed.main_param, run.main_param);
  const auto reload = [&]<class Format>(Format, const TestTensor& codes, const TestTensor& exponents,
                                        const TestTensor& new_codes, const TestTensor& new_exponents) {
    for (int64_t block = 0; block < n / kAdamWGranule; ++block) {
      Block old;
      const auto* from = codes.get().as<uint8_t>() + block * kAdamWGranule;
      std::copy(from, from + kAdamWGranule, old.codes);
      old.exponent = exponents.get().as<uint8_t>()[block];
      const Block loaded = encode<Format>(decode<Format>(old, kAdamWGranule));
      std::copy(loaded.codes, loaded.codes + kAdamWGranule,
                new_codes.get().as<uint8_t>() + block * kAdamWGranule);
      new_exponents.get().as<uint8_t>()[block] = loaded.exponent;
    }
  };
  reload(Fp8ExpAvg{}, run.exp_avg, run.first, resumed.exp_avg, resumed.first);
  reload(Fp8ExpAvgSq{}, run.exp_avg_sq, run.second, resumed.exp_avg_sq, resumed.second);
  EXPECT_NE(resumed.first.raw(), run.first.raw());
  for (int64_t number = 4; number <= 6; ++number) {
    step(run, number);
    step(resumed, number);
    EXPECT_EQ(resumed.main_param.raw(), run.main_param.raw()) << number;
  }
  // The first step writes all blocks again, from the same values.
  EXPECT_EQ(resumed.exp_avg.raw(), run.exp_avg.raw());
  EXPECT_EQ(resumed.exp_avg_sq.raw(), run.exp_avg_sq.raw());
  EXPECT_EQ(resumed.first.raw(), run.first.raw());
  EXPECT_EQ(resumed.second.raw(), run.second.raw());
}

TEST(MomentFp8, ZeroTinyAndNonFiniteBlocks) {
  const float inf = INFINITY, nan = std::nanf("");
  for (const std::vector<float>& values :
       {std::vector<float>{0, 0}, {1e-45f, 0}, {1e-45f, 1e-30f}, {0, 1e38f}}) {
    for (const float x : decode<Fp8ExpAvgSq>(encode<Fp8ExpAvgSq>(values), 2)) EXPECT_TRUE(std::isfinite(x));
  }
  EXPECT_EQ(decode<Fp8ExpAvg>(encode<Fp8ExpAvg>({0, -0.0f, 1e-45f}), 3), (std::vector<float>{0, 0, 0}));
  // Non-finite values stay non-finite, so that such moments are never saved; other elements stay finite.
  for (const float bad : {inf, nan}) {
    const std::vector<float> m = decode<Fp8ExpAvg>(encode<Fp8ExpAvg>({bad, -bad, 1.0f}), 3);
    EXPECT_TRUE(std::isnan(m[0]) && std::isnan(m[1]) && std::isfinite(m[2]));
    const std::vector<float> v = decode<Fp8ExpAvgSq>(encode<Fp8ExpAvgSq>({bad, 1.0f}), 2);
    EXPECT_TRUE(std::isnan(v[0]) && std::isfinite(v[1]));
  }
  EXPECT_TRUE(std::isnan(decode<Fp8ExpAvg>(encode<Fp8ExpAvg>({std::numeric_limits<float>::max()}), 1)[0]));
}

// The mean over all random numbers is the value itself; for exp_avg_sq that of the square.
template <class Format>
void expect_unbiased(float x, float largest) {
  const int k = block_exponent<Format>(std::bit_cast<uint32_t>(Format::magnitude(largest)));
  double sum = 0;
  for (uint32_t random = 0; random < 65536; ++random)
    sum += static_cast<double>(Format::decode(Format::encode(x, k, random), k));
  EXPECT_NEAR(sum / 65536 / static_cast<double>(x), 1.0, 3e-5) << x << " " << largest;
}

TEST(MomentFp8, RoundingIsUnbiased) {
  for (const float x : {1.0f, 0.7f, 0.0123f, 3e-3f}) {
    for (const float largest : {1.0f, 3.3f, 17.0f}) {
      expect_unbiased<Fp8ExpAvg>(x, largest);
      expect_unbiased<Fp8ExpAvg>(-x, largest);
      expect_unbiased<Fp8ExpAvgSq>(x * x, largest * largest);
    }
  }
}

// Second moments in FP8 neither stall nor drift: their mean and the parameters follow FP32.
TEST(MomentFp8, FollowsFp32OverManySteps) {
  const int64_t n = 4000;  // the last block is partial
  Fp8AdamW exact(n, false), fp8(n, true);
  AdamW a = exact.args(), b = fp8.args();
  for (int step = 1; step <= 300; ++step) {
    for (Fp8AdamW* x : {&exact, &fp8}) x->main_grad.fill_normal(static_cast<uint64_t>(step), 0.1f, 0.05f);
    a.step = b.step = step;
    adamw(cpu(), a);
    adamw(cpu(), b);
    if (step == 1) {
      EXPECT_EQ(fp8.main_param.raw(), exact.main_param.raw());
    }
  }
  double sum = 0, expected = 0;
  const std::vector<float> v = exact.exp_avg_sq.floats();
  const std::vector<uint8_t> codes = fp8.exp_avg_sq.raw(), exponents = fp8.second.raw();
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(Fp8ExpAvgSq::decode(codes[i], exponent_of(exponents[i / kAdamWGranule])));
    expected += static_cast<double>(v[i]);
  }
  EXPECT_NEAR(sum / expected, 1.0, 0.01);
  EXPECT_LT(testing::relative_error(fp8.main_param.floats(), exact.main_param.floats()), 0.1);
}

TEST(MomentFp8, RejectsMissingExponents) {
  Fp8AdamW b(300, true), other(128, true);
  b.main_grad.fill_value(0);
  AdamW args = b.args();
  args.exp_avg_exponents = {};
  EXPECT_THROW(adamw(cpu(), args), InternalError);
  args = b.args();
  args.exp_avg_sq_exponents = other.second;
  EXPECT_THROW(adamw(cpu(), args), InternalError);
}

}  // namespace
}  // namespace te::kernels
