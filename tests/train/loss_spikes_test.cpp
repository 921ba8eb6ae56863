// Detection of loss spikes.
#include "train/loss_spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace te::train {
namespace {

/// Losses around 3 that differ by a few hundredths.
double usual(int64_t i) {
  return 3.0 + 0.01 * static_cast<double>(i * 7 % 11);
}

TEST(LossSpikes, AreFarAboveTheMedian) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  EXPECT_EQ(spikes.limit(), 11.0);
  for (int64_t i = 0; i < 100; ++i) EXPECT_FALSE(spikes.add(usual(i))) << i;
  EXPECT_NEAR(spikes.median(), 3.05, 0.011);
  EXPECT_NEAR(spikes.limit(), 3.05 + 10 * 1.4826 * 0.03, 0.17);
  EXPECT_TRUE(spikes.add(4.0));
  EXPECT_TRUE(spikes.add(26233.0));
  EXPECT_EQ(spikes.consecutive(), 2);
  EXPECT_FALSE(spikes.is_stable());
  EXPECT_FALSE(spikes.add(0.5));  // a decrease is not a spike
  EXPECT_EQ(spikes.consecutive(), 0);
  EXPECT_EQ(spikes.total(), 2);
  EXPECT_NEAR(spikes.median(), 3.05, 0.011);
  EXPECT_FALSE(spikes.is_stable());
  for (int64_t i = 0; i < 15; ++i) spikes.add(usual(i));
  EXPECT_TRUE(spikes.is_stable());
}

TEST(LossSpikes, EarlyDivergenceExceedsTheUnknownLimit) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.1, history);
  EXPECT_FALSE(spikes.add(5.55));
  EXPECT_FALSE(spikes.add(7.0));
  EXPECT_TRUE(spikes.add(26233.0));
  EXPECT_EQ(spikes.consecutive(), 1);
}

TEST(LossSpikes, ConstantLossHasAMinimumSpread) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  for (int64_t i = 0; i < 20; ++i) EXPECT_FALSE(spikes.add(2.0));
  EXPECT_FALSE(spikes.add(2.19));
  EXPECT_TRUE(spikes.add(2.21));
}

TEST(LossSpikes, NewLevelIsAcceptedAfterManySpikes) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  for (int64_t i = 0; i < 64; ++i) spikes.add(usual(i));
  for (size_t i = 0; i < LossSpikes::kNewLevel; ++i) EXPECT_TRUE(spikes.add(6.0)) << i;
  EXPECT_FALSE(spikes.add(6.1));
  EXPECT_TRUE(spikes.add(9.0));
}

TEST(LossSpikes, LevelBeyondTheUnknownLimitIsAcceptedOnlyAtTheStart) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  for (int64_t i = 0; i < 64; ++i) spikes.add(usual(i));
  for (int64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(spikes.has_diverged(), i >= static_cast<int64_t>(LossSpikes::kNewLevel)) << i;
    EXPECT_TRUE(spikes.add(8000.0)) << i;
  }
  EXPECT_FALSE(spikes.is_stable());
  EXPECT_FALSE(spikes.add(3.0));  // it recovered
  EXPECT_FALSE(spikes.has_diverged());
  // After an initialization as bad as that, the level is accepted.
  checkpoint::SpikeHistory other;
  LossSpikes bad(10.0, 11.0, other);
  for (size_t i = 0; i < LossSpikes::kNewLevel; ++i) EXPECT_TRUE(bad.add(30.0)) << i;
  EXPECT_FALSE(bad.has_diverged());
  EXPECT_FALSE(bad.add(29.0));
}

// The window is that of the checkpoint: later spikes were never in it and do not change it.
TEST(LossSpikes, RollbackRestoresTheWindow) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  for (int64_t i = 0; i < 20; ++i) spikes.add(2.0);
  const checkpoint::SpikeHistory saved = history;
  spikes.add(2.01);
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(spikes.add(5.0));
  const checkpoint::SpikeHistory undone = std::exchange(history, saved);
  spikes.rollback(undone);
  EXPECT_EQ(spikes.consecutive(), 0);
  EXPECT_EQ(spikes.limit(), 2.0 + 10 * 0.01 * 2.0);
  EXPECT_EQ(history.accepted.size(), 20u);
  EXPECT_EQ(spikes.total(), 7);
  EXPECT_FALSE(spikes.is_stable());
}

// A single bad batch at the end of a run is not divergence.
TEST(LossSpikes, RunHasProbablyDivergedIfItsLastStepsAreSpikes) {
  checkpoint::SpikeHistory history;
  LossSpikes spikes(10.0, 11.0, history);
  for (int64_t i = 0; i < 20; ++i) spikes.add(usual(i));
  for (int64_t i = 1; i < 6; ++i) {
    spikes.add(8.0);
    EXPECT_EQ(diverged_steps({}, spikes).empty(), i < LossSpikes::kDiverged) << i;
  }
  spikes.add(3.0);
  EXPECT_EQ(diverged_steps({}, spikes), "");
  EXPECT_EQ(diverged_steps({.consecutive_skipped = 2}, spikes), "");
  EXPECT_EQ(diverged_steps({.consecutive_skipped = 3}, spikes), "the last 3 steps were not finite");
}

TEST(LossSpikes, OnlySkippingHasALimitOnTheDevice) {
  config::Config config;
  checkpoint::SpikeHistory history;
  for (const auto policy :
       {config::LossSpikes::off, config::LossSpikes::warn, config::LossSpikes::rollback}) {
    config.training.loss_spikes = policy;
    EXPECT_TRUE(std::isinf(LossSpikes(config, history).skip_limit()));
  }
  config.training.loss_spikes = config::LossSpikes::skip;
  EXPECT_EQ(LossSpikes(config, history).skip_limit(), LossSpikes(config, history).limit());
}

}  // namespace
}  // namespace te::train
