// The loss scale of FP16 runs compared with its rule, step by step.
#include "train/loss_scaler.h"

#include <gtest/gtest.h>

#include <vector>

namespace te::train {
namespace {

config::PrecisionConfig fp16(double initial = 64) {
  config::PrecisionConfig precision;
  precision.dtype = config::ComputeDType::fp16;
  precision.initial_loss_scale = initial;
  return precision;
}

struct Step {
  bool finite;
  double scale;  ///< after the step
  bool adapts;   ///< result of update()
};

void expect_steps(const LossScaler& scaler, checkpoint::LossScale state, const std::vector<Step>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(scaler.update(state, steps[i].finite), steps[i].adapts) << "step " << i;
    EXPECT_EQ(state.scale, steps[i].scale) << "step " << i;
    EXPECT_EQ(scaler.factor(state), state.scale);
  }
}

TEST(LossScaler, HalvesAtOnceAndDoublesAfter2000FiniteSteps) {
  const LossScaler scaler(fp16());
  ASSERT_TRUE(scaler.active());
  checkpoint::LossScale state = scaler.start({});
  EXPECT_EQ(state, (checkpoint::LossScale{.scale = 64, .good_steps = 0}));
  for (int step = 1; step < 2000; ++step) EXPECT_FALSE(scaler.update(state, true));
  EXPECT_EQ(state.scale, 64);
  expect_steps(
      scaler, state,
      {{true, 128, false}, {true, 128, false}, {false, 64, true}, {false, 32, true}, {true, 32, false}});
  // An overflow restarts the count.
  scaler.update(state, false);
  EXPECT_EQ(state, (checkpoint::LossScale{.scale = 32, .good_steps = 0}));
}

TEST(LossScaler, HasAMinimumOf1) {
  const LossScaler scaler(fp16(4));
  expect_steps(scaler, scaler.start({}),
               {{false, 2, true}, {false, 1, true}, {false, 1, false}, {true, 1, false}});
}

TEST(LossScaler, ContinuesFromACheckpoint) {
  const LossScaler scaler(fp16());
  const checkpoint::LossScale found{.scale = 32, .good_steps = 1999};
  EXPECT_EQ(scaler.start(found), found);
  expect_steps(scaler, scaler.start(found), {{true, 64, false}});
}

TEST(LossScaler, FixedScaleDoesNotChange) {
  config::PrecisionConfig precision = fp16();
  precision.loss_scale = 100;
  const LossScaler scaler(precision);
  const checkpoint::LossScale state = scaler.start({.scale = 32, .good_steps = 1999});
  EXPECT_EQ(state, checkpoint::LossScale{.scale = 100});
  expect_steps(scaler, state,
               {{true, 100, false}, {false, 100, false}, {true, 100, false}, {true, 100, false}});
}

TEST(LossScaler, OtherDtypesHaveNone) {
  for (const config::ComputeDType dtype : {config::ComputeDType::bf16, config::ComputeDType::fp32}) {
    config::PrecisionConfig precision = fp16();
    precision.dtype = dtype;
    precision.loss_scale = 8;
    const LossScaler scaler(precision);
    EXPECT_FALSE(scaler.active());
    checkpoint::LossScale state = scaler.start({.scale = 32, .good_steps = 2});
    EXPECT_EQ(state, checkpoint::LossScale{});
    EXPECT_EQ(scaler.factor(state), 1.0);
    EXPECT_FALSE(scaler.update(state, false));
    EXPECT_EQ(state, checkpoint::LossScale{});
  }
}

}  // namespace
}  // namespace te::train
