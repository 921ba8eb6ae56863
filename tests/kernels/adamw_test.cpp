// CPU reference of AdamW: one step computed by hand, a hundred steps against double precision, the skip flag, decay
// flags.
#include "kernels/adamw/adamw.h"

#include <bit>
#include <cmath>

#include "core/float_types.h"
#include "kernels/param_split/param_split.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

using testing::cpu;
using testing::TestTensor;

// All buffers of one optimizer, filled with small numbers; granules with even indices have weight decay.
struct Buffers {
  explicit Buffers(int64_t n)
      : main_param(cpu(), DType::f32, {n}),
        main_grad(cpu(), DType::f32, {n}),
        exp_avg(cpu(), DType::f32, {n}),
        exp_avg_sq(cpu(), DType::f32, {n}),
        param(cpu(), DType::bf16, {n}),
        decay(cpu(), DType::u8, {(n + kAdamWGranule - 1) / kAdamWGranule}) {
    main_param.fill_normal(1);
    main_grad.fill_normal(2, 0.1f);
    exp_avg.fill_value(0);
    exp_avg_sq.fill_value(0);
    std::vector<uint8_t> flags(static_cast<size_t>(decay.get().numel()));
    for (size_t i = 0; i < flags.size(); ++i) flags[i] = i % 2 == 0;
    decay.fill_raw(flags.data());
  }
  AdamW args() {
    return {.main_param = main_param,
            .main_grad = main_grad,
            .exp_avg = exp_avg,
            .exp_avg_sq = exp_avg_sq,
            .param = param,
            .flags = decay,
            .lr = 1e-2f,
            .weight_decay = 0.1f};
  }
  TestTensor main_param, main_grad, exp_avg, exp_avg_sq, param, decay;
};

TEST(AdamW, OneStepByHand) {
  // Step 1 from zero moments: the corrected moments are g and g^2, so the update is lr * sign(g).
  Buffers b(2);
  b.main_param.fill({1.0f, -2.0f});
  b.main_grad.fill({0.5f, -4.0f});
  AdamW args = b.args();
  args.lr = 0.125f, args.beta1 = 0.5f, args.beta2 = 0.75f, args.eps = 0.0f, args.weight_decay = 0.25f;
  adamw(cpu(), args);
  EXPECT_EQ(b.exp_avg.floats(), (std::vector<float>{0.25f, -2.0f}));
  EXPECT_EQ(b.exp_avg_sq.floats(), (std::vector<float>{0.0625f, 4.0f}));
  // 1 (1 - 0.03125) - 0.125 = 0.84375;  -2 (1 - 0.03125) + 0.125 = -1.8125
  EXPECT_EQ(b.main_param.floats(), (std::vector<float>{0.84375f, -1.8125f}));
  EXPECT_EQ(b.param.floats(), (std::vector<float>{0.84375f, -1.8125f}));
}

// Each granule is updated with the settings of its group, whether the flag says that it decays or not.
TEST(AdamW, GroupsHaveTheirOwnSettings) {
  constexpr int64_t kGranules = 3, n = kGranules * kAdamWGranule;
  const std::vector<AdamWGroup> groups = {{1.0f, 0.1f}, {0.5f, 0.3f}, {0.0f, 1.0f}};
  Buffers grouped(n), first(n), second(n);
  TestTensor table(cpu(), DType::u8, {static_cast<int64_t>(groups.size() * sizeof(AdamWGroup))});
  table.fill_raw(groups.data());
  const std::vector<uint8_t> flags = {0 << kGranuleGroupShift, 1 << kGranuleGroupShift,
                                      2 << kGranuleGroupShift};
  grouped.decay.fill_raw(flags.data());
  const std::vector<uint8_t> decays(kGranules, kGranuleDecays);
  for (Buffers* b : {&first, &second}) b->decay.fill_raw(decays.data());
  const std::vector<float> before = grouped.main_param.floats();
  AdamW args = grouped.args(), halved = second.args();
  args.groups = table;
  halved.lr *= 0.5f, halved.weight_decay = 0.3f;
  for (int step = 1; step <= 3; ++step) {
    AdamW plain = first.args();
    args.step = halved.step = plain.step = step;
    adamw(cpu(), args), adamw(cpu(), plain), adamw(cpu(), halved);
  }
  const std::vector<float> result = grouped.main_param.floats();
  const std::vector<float> expected[] = {first.main_param.floats(), second.main_param.floats(), before};
  for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], expected[i / kAdamWGranule][i]) << i;
}

// With remainders the parameter is the same number, except for the one case described in param_split.h.
TEST(AdamW, RemaindersGiveTheSameParameters) {
  const int64_t n = 20'000;
  Buffers whole(n), halves(n);
  TestTensor remainder(cpu(), DType::u16, {n});
  split_params(cpu(), {whole.main_param, halves.param, remainder});
  AdamW args = halves.args();
  args.main_param = {};
  args.remainder = remainder;
  std::vector<float> joined(static_cast<size_t>(n));
  for (int step = 1; step <= 5; ++step) {
    AdamW reference = whole.args();
    reference.step = args.step = step;
    adamw(cpu(), reference);
    adamw(cpu(), args);
    join_params_on_host(halves.param.get().as<uint16_t>(), remainder.get().as<uint16_t>(), n, joined.data());
    const std::vector<float> expected = whole.main_param.floats();
    for (size_t i = 0; i < joined.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(expected[i]), actual = std::bit_cast<uint32_t>(joined[i]);
      ASSERT_LE(bits - actual, step) << i;  // one unit towards zero per step
    }
    EXPECT_EQ(halves.exp_avg.floats(), whole.exp_avg.floats());
  }
  EXPECT_NE(joined, std::vector<float>(joined.size(), 0.0f));
}

TEST(ParamSplit, RoundTripsExactlyAndRoundsLikeBf16) {
  const uint32_t uppers[] = {0x0000, 0x0001, 0x3f80, 0x3f81, 0x3fff, 0x7f7e, 0xbf80, 0xc0ff, 0x807f};
  for (const uint32_t upper : uppers) {
    for (uint32_t lower = 0; lower <= 0xffff; ++lower) {
      const uint32_t bits = upper << 16 | lower;
      const SplitFloat split = split_float(bits);
      const bool tie_to_zero = lower == 0x8000 && upper % 2 == 0;
      ASSERT_EQ(join_float(split), bits - tie_to_zero) << std::hex << bits;
      ASSERT_EQ(split.value, to_bf16(std::bit_cast<float>(bits)).bits) << std::hex << bits;
      ASSERT_EQ(split_float(join_float(split)).value, split.value) << std::hex << bits;
    }
  }
}

TEST(AdamW, EpsIsAddedToTheCorrectedRoot) {
  Buffers b(1);
  b.main_param.fill({0.0f});
  b.main_grad.fill({3.0f});
  AdamW args = b.args();
  args.lr = 1.0f, args.eps = 1.0f, args.beta1 = 0.5f, args.beta2 = 0.75f, args.weight_decay = 0.0f;
  adamw(cpu(), args);
  EXPECT_EQ(b.main_param.floats()[0], -0.75f);  // 3 / (3 + 1)
}

TEST(AdamW, HundredStepsAgainstDoublePrecision) {
  const int64_t n = 1000;
  Buffers b(n);
  AdamW args = b.args();
  const float multiplier = 0.5f;
  args.grad_multiplier = &multiplier;
  const std::vector<float> start = b.main_param.floats();
  std::vector<double> w(start.begin(), start.end()), m(n, 0.0), v(n, 0.0);
  for (int step = 1; step <= 100; ++step) {
    b.main_grad.fill_normal(static_cast<uint64_t>(100 + step), 0.1f);
    args.step = step;
    adamw(cpu(), args);
    const std::vector<float> gradient = b.main_grad.floats();
    const double b1 = args.beta1, b2 = args.beta2, lr = args.lr;
    for (int64_t i = 0; i < n; ++i) {
      const double g = 0.5 * static_cast<double>(gradient[i]);
      const bool decayed = i / kAdamWGranule % 2 == 0;
      m[i] = b1 * m[i] + (1 - b1) * g;
      v[i] = b2 * v[i] + (1 - b2) * g * g;
      w[i] = w[i] * (1 - (decayed ? lr * static_cast<double>(args.weight_decay) : 0.0)) -
             lr * (m[i] / (1 - std::pow(b1, step))) /
                 (std::sqrt(v[i] / (1 - std::pow(b2, step))) + static_cast<double>(args.eps));
    }
  }
  // Each step rounds a parameter of magnitude ~1 once (6e-8); the errors of a hundred roundings add up to about 6e-7.
  EXPECT_LT(testing::relative_error(b.main_param.floats(), {w.begin(), w.end()}), 1e-6);
  EXPECT_LT(testing::relative_error(b.exp_avg.floats(), {m.begin(), m.end()}), 1e-6);
  EXPECT_LT(testing::relative_error(b.exp_avg_sq.floats(), {v.begin(), v.end()}), 1e-6);
  const std::vector<float> rounded = b.param.floats(), exact = b.main_param.floats();
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(rounded[i], to_float(to_bf16(exact[i])));
}

TEST(AdamW, SmallDecayIsNotLostInRounding) {
  // lr * weight_decay = 1e-6: a factor 1 - 1e-6 rounded to FP32 would change the decay by 3%.
  const int64_t n = 4 * kAdamWGranule;
  Buffers b(n);
  b.main_grad.fill_value(0.0f);
  std::vector<uint8_t> flags(4, 1);
  b.decay.fill_raw(flags.data());
  std::vector<float> start(n);
  for (int64_t i = 0; i < n; ++i) start[i] = 1.0f + static_cast<float>(i) / static_cast<float>(n);
  b.main_param.fill(start);
  AdamW args = b.args();
  args.lr = 1e-5f;
  double before = 0, after = 0;
  for (float x : start) before += static_cast<double>(x);
  for (args.step = 1; args.step <= 200; ++args.step) adamw(cpu(), args);
  for (float x : b.main_param.floats()) after += static_cast<double>(x);
  EXPECT_NEAR((before - after) / before, 200e-6, 3e-6);
}

TEST(AdamW, DecayFlagsSelectGranules) {
  const int64_t n = 2 * kAdamWGranule + 40;  // the last granule is partial
  Buffers b(n);
  b.main_grad.fill_value(0.0f);
  b.main_param.fill_value(1.0f);
  AdamW args = b.args();
  args.lr = 0.5f, args.weight_decay = 0.5f;
  adamw(cpu(), args);
  const std::vector<float> after = b.main_param.floats();
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(after[i], i / kAdamWGranule == 1 ? 1.0f : 0.75f) << i;
}

TEST(AdamW, SkipKeepsAllBits) {
  Buffers b(300);
  AdamW args = b.args();
  const auto state = [&] {
    return std::vector{b.main_param.raw(), b.main_grad.raw(), b.exp_avg.raw(), b.exp_avg_sq.raw(),
                       b.param.raw()};
  };
  const float multiplier = 0.0f;
  int32_t skip = 1;
  args.grad_multiplier = &multiplier, args.skip = &skip;
  const auto before = state();
  adamw(cpu(), args);
  EXPECT_EQ(before, state());
  skip = 0;
  adamw(cpu(), args);
  EXPECT_NE(before, state());
}

TEST(AdamW, NonFiniteGradientsAffectOnlyTheirElement) {
  Buffers b(3);
  b.main_grad.fill({1.0f, std::nanf(""), INFINITY});
  adamw(cpu(), b.args());
  const std::vector<float> after = b.main_param.floats();
  EXPECT_TRUE(std::isfinite(after[0]));
  EXPECT_TRUE(std::isnan(after[1]));
  EXPECT_TRUE(std::isnan(after[2]));
}

TEST(AdamW, WorksWithoutModelWeightsAndOnAnEmptyShard) {
  Buffers b(5), with(5);
  AdamW args = b.args();
  args.param = {};
  adamw(cpu(), args);
  adamw(cpu(), with.args());
  EXPECT_EQ(b.main_param.raw(), with.main_param.raw());
  adamw(cpu(), AdamW{});
}

TEST(AdamW, ModelWeightsMayBeFp32OrTheMasterWeights) {
  Buffers bf16(300), fp32(300), same(300);
  TestTensor copy(cpu(), DType::f32, {300});
  adamw(cpu(), bf16.args());
  AdamW args = fp32.args();
  args.param = copy;
  adamw(cpu(), args);
  args = same.args();
  args.param = same.main_param;
  adamw(cpu(), args);
  EXPECT_EQ(copy.raw(), bf16.main_param.raw());
  EXPECT_EQ(fp32.main_param.raw(), bf16.main_param.raw());
  EXPECT_EQ(same.main_param.raw(), bf16.main_param.raw());
}

TEST(AdamW, OnlyTheDecayFlagDecays) {
  Buffers b(2 * kAdamWGranule), plain(2 * kAdamWGranule);
  const std::vector<uint8_t> both = {kGranuleDecays | kGranuleCounted, kGranuleCounted};
  const std::vector<uint8_t> decay_only = {kGranuleDecays, 0};
  b.decay.fill_raw(both.data());
  plain.decay.fill_raw(decay_only.data());
  adamw(cpu(), b.args());
  adamw(cpu(), plain.args());
  EXPECT_EQ(b.main_param.raw(), plain.main_param.raw());
}

TEST(AdamW, RejectsAWrongNumberOfDecayFlags) {
  Buffers b(129), other(128);
  AdamW args = b.args();
  args.flags = other.decay;
  EXPECT_THROW(adamw(cpu(), args), InternalError);
}

}  // namespace
}  // namespace te::kernels
