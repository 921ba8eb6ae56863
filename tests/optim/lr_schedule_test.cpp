// Learning rate schedules at their bounds, at hand-computed points, and in degenerate settings.
#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace te::optim {
namespace {

LrSchedule schedule(LrDecay decay) {
  return {.lr = 1.0,
          .min_lr = 0.25,
          .warmup_steps = 10,
          .decay_steps = 110,
          .decay = decay,
          .wsd_decay_steps = 20};
}

constexpr LrDecay kAll[] = {LrDecay::constant, LrDecay::linear, LrDecay::cosine, LrDecay::wsd};

TEST(LrSchedule, WarmsUpLinearly) {
  for (LrDecay decay : kAll) {
    const LrSchedule s = schedule(decay);
    EXPECT_EQ(s.at(1), 0.1f);
    EXPECT_EQ(s.at(5), 0.5f);
    EXPECT_EQ(s.at(10), 1.0f);
    EXPECT_LE(s.at(11), 1.0f);
  }
}

TEST(LrSchedule, HandComputedPoints) {
  EXPECT_EQ(schedule(LrDecay::constant).at(60), 1.0f);
  EXPECT_EQ(schedule(LrDecay::linear).at(60), 0.625f);  // half way
  EXPECT_FLOAT_EQ(schedule(LrDecay::linear).at(11), 0.9925f);
  EXPECT_FLOAT_EQ(schedule(LrDecay::cosine).at(60), 0.625f);
  // A quarter of the way: 0.25 + 0.75 (1 + cos(pi / 4)) / 2
  EXPECT_FLOAT_EQ(schedule(LrDecay::cosine).at(35), 0.8901650f);
  EXPECT_EQ(schedule(LrDecay::wsd).at(90), 1.0f);
  EXPECT_FLOAT_EQ(schedule(LrDecay::wsd).at(91), 0.9625f);
  EXPECT_EQ(schedule(LrDecay::wsd).at(100), 0.625f);
}

TEST(LrSchedule, EndsAtMinimumAndStaysThere) {
  for (LrDecay decay : {LrDecay::linear, LrDecay::cosine, LrDecay::wsd}) {
    const LrSchedule s = schedule(decay);
    EXPECT_GT(s.at(109), 0.25f);
    EXPECT_EQ(s.at(110), 0.25f);
    EXPECT_EQ(s.at(111), 0.25f);
    EXPECT_EQ(s.at(1'000'000'000'000), 0.25f);
  }
  EXPECT_EQ(schedule(LrDecay::constant).at(1'000'000'000'000), 1.0f);
}

TEST(LrSchedule, NeverRisesAfterWarmup) {
  for (LrDecay decay : kAll) {
    const LrSchedule s = schedule(decay);
    for (int64_t step = 10; step < 130; ++step) EXPECT_GE(s.at(step), s.at(step + 1)) << step;
  }
}

TEST(LrSchedule, WithoutWarmup) {
  LrSchedule s = schedule(LrDecay::linear);
  s.warmup_steps = 0;
  EXPECT_FLOAT_EQ(s.at(1), 1.0f - 0.75f / 110);
  EXPECT_EQ(s.at(55), 0.625f);
  s.decay = LrDecay::constant;
  EXPECT_EQ(s.at(1), 1.0f);
  s.decay = LrDecay::wsd;
  EXPECT_EQ(s.at(1), 1.0f);
}

TEST(LrSchedule, WarmupAsLongAsTheRunOrLonger) {
  for (LrDecay decay : {LrDecay::linear, LrDecay::cosine, LrDecay::wsd}) {
    LrSchedule s = schedule(decay);
    s.decay_steps = 10;
    EXPECT_EQ(s.at(10), 1.0f);  // warmup takes precedence at the common step
    EXPECT_EQ(s.at(11), 0.25f);
    s.decay_steps = 5;
    EXPECT_EQ(s.at(7), 0.7f);
    EXPECT_EQ(s.at(10), 1.0f);
    EXPECT_EQ(s.at(11), 0.25f);
    s.decay_steps = 0;
    EXPECT_EQ(s.at(3), 0.3f);
    EXPECT_EQ(s.at(11), 0.25f);
  }
}

TEST(LrSchedule, WsdDecayLongerThanTheStablePhaseOrZero) {
  LrSchedule s = schedule(LrDecay::wsd);
  s.wsd_decay_steps = 1000;  // the decay starts right after the warmup
  EXPECT_EQ(s.at(10), 1.0f);
  EXPECT_EQ(s.at(60), 0.625f);
  s.wsd_decay_steps = 0;  // a step down at the end
  EXPECT_EQ(s.at(109), 1.0f);
  EXPECT_EQ(s.at(110), 0.25f);
}

// llm.c, nanochat and modded-nanogpt count steps from 0, so that their last step has a rate above the minimum.
TEST(LrSchedule, OneMoreDecayStepGivesTheRatesOfTrainersThatCountFromZero) {
  constexpr int64_t kSteps = 110;
  const LrSchedule cooldown = {
      .lr = 1.0, .decay_steps = kSteps + 1, .decay = LrDecay::wsd, .wsd_decay_steps = 20};
  for (int64_t step = 0; step < kSteps; ++step)
    EXPECT_FLOAT_EQ(cooldown.at(step + 1), std::min(1.0f, static_cast<float>(kSteps - step) / 20)) << step;
  // llm.c has the full rate at the last step of the warmup and at the first one after it.
  const LrSchedule cosine = {.lr = 1.0, .warmup_steps = 10 + 1, .decay_steps = kSteps + 1};
  for (int64_t step = 10; step < kSteps; ++step)
    EXPECT_NEAR(cosine.at(step + 1),
                0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step - 10) / (kSteps - 10))), 1e-7)
        << step;
}

TEST(LrSchedule, StepsCountFromOne) {
  EXPECT_THROW(schedule(LrDecay::cosine).at(0), InternalError);
}

}  // namespace
}  // namespace te::optim
