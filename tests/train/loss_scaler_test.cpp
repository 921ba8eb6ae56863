// The loss scale of FP16 runs compared with its rule, step by step.
#include "train/loss_scaler.h"

#include <gtest/gtest.h>

#include <vector>

namespace te::train {
namespace {

config::PrecisionConfig fp16() {
  config::PrecisionConfig precision;
  precision.dtype = config::ComputeDType::fp16;
  precision.initial_loss_scale = 64;
  precision.min_loss_scale = 8;
  precision.loss_scale_window = 3;
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

TEST(LossScaler, HalvesAtOnceAndDoublesAfterAWindow) {
  const LossScaler scaler(fp16());
  ASSERT_TRUE(scaler.active());
  const checkpoint::LossScale state = scaler.start({});
  EXPECT_EQ(state, (checkpoint::LossScale{.scale = 64, .good_steps = 0, .hysteresis = 1}));
  expect_steps(scaler, state,
               {{true, 64, false},
                {true, 64, false},
                {true, 128, false},  // three consecutive
                {true, 128, false},
                {true, 128, false},
                {false, 64, true},  // restarts the count
                {true, 64, false},
                {true, 64, false},
                {true, 128, false},
                {false, 64, true},
                {false, 32, true},
                {false, 16, true},
                {false, 8, true},
                {false, 8, false},  // at the minimum: not handled
                {true, 8, false},
                {true, 8, false},
                {true, 16, false}});
}

// As in Megatron-LM: hysteresis is restored when the scale grows, not at the next good step.
TEST(LossScaler, HysteresisToleratesOverflows) {
  config::PrecisionConfig precision = fp16();
  precision.hysteresis = 3;
  const LossScaler scaler(precision);
  expect_steps(scaler, scaler.start({}),
               {{false, 64, true},
                {true, 64, false},
                {false, 64, true},
                {false, 32, true},
                {false, 16, true},
                {true, 16, false},
                {true, 16, false},
                {true, 32, false},
                {false, 32, true},
                {false, 32, true},
                {false, 16, true}});
}

TEST(LossScaler, ContinuesFromACheckpoint) {
  const LossScaler scaler(fp16());
  const checkpoint::LossScale found{.scale = 32, .good_steps = 2, .hysteresis = 1};
  EXPECT_EQ(scaler.start(found), found);
  expect_steps(scaler, scaler.start(found), {{true, 64, false}});
  // Below the minimum of this run.
  EXPECT_EQ(scaler.start({.scale = 2, .good_steps = 1, .hysteresis = 1}).scale, 8);
}

TEST(LossScaler, FixedScaleDoesNotChange) {
  config::PrecisionConfig precision = fp16();
  precision.loss_scale = 100;
  const LossScaler scaler(precision);
  const checkpoint::LossScale state = scaler.start({.scale = 32, .good_steps = 2, .hysteresis = 1});
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
    checkpoint::LossScale state = scaler.start({.scale = 32, .good_steps = 2, .hysteresis = 1});
    EXPECT_EQ(state, checkpoint::LossScale{});
    EXPECT_EQ(scaler.factor(state), 1.0);
    EXPECT_FALSE(scaler.update(state, false));
    EXPECT_EQ(state, checkpoint::LossScale{});
  }
}

}  // namespace
}  // namespace te::train
