// The estimated remaining time of a run.
#include "train/remaining_time.h"

#include <gtest/gtest.h>

namespace te::train {
namespace {

TEST(RemainingTime, StepsValidationsAndSaves) {
  RemainingTime time({.train_steps = 100, .eval_interval = 30, .save_every = 50});
  EXPECT_EQ(time.after(0), 0);
  time.step(2);
  EXPECT_DOUBLE_EQ(time.after(1), 2 * 99);
  for (int i = 0; i < 3; ++i) time.validation(7);
  time.save(11);
  // After step 30: validations at 60, 90 and the last step; saves at 50 and 100.
  EXPECT_DOUBLE_EQ(time.after(30), 2 * 70 + 7 * 3 + 11 * 2);
  EXPECT_DOUBLE_EQ(time.after(99), 2 + 7 + 11);
  EXPECT_EQ(time.after(100), 0);
}

TEST(RemainingTime, IncludesEvaluationsOnTasks) {
  RemainingTime time({.train_steps = 100, .task_interval = 40});
  time.step(1);
  time.tasks(5);
  EXPECT_DOUBLE_EQ(time.after(10), 90 + 5 * 3);  // at 40, 80 and the last step
}

// For example a first step with autotuning, and one that waits for a disk.
TEST(RemainingTime, FewLongStepsAreIgnored) {
  RemainingTime time({.train_steps = 1000});
  time.step(60);
  for (int i = 0; i < 40; ++i) time.step(1);
  time.step(500);
  EXPECT_DOUBLE_EQ(time.after(42), 958);
}

// Steps of two lengths count with their mean.
TEST(RemainingTime, StepsOfDifferentLengthCountWithTheirMean) {
  RemainingTime time({.train_steps = 1000});
  for (int i = 0; i < 200; ++i) time.step(i % 2 == 0 ? 1 : 3);
  EXPECT_DOUBLE_EQ(time.after(200), 800 * 2);
}

TEST(RemainingTime, OldStepsDoNotCount) {
  RemainingTime time({.train_steps = 1000});
  for (int i = 0; i < 100; ++i) time.step(5);
  for (size_t i = 0; i < RemainingTime::kWindow; ++i) time.step(1);
  EXPECT_DOUBLE_EQ(time.after(900), 100);
}

TEST(TimeLeft, DaysFromTwoOn) {
  EXPECT_EQ(time_left(59.6), "01:00");
  EXPECT_EQ(time_left(3723), "1:02:03");
  EXPECT_EQ(time_left(47 * 3600), "47:00:00");
  EXPECT_EQ(time_left(100 * 3600), "4d 04h");
}

}  // namespace
}  // namespace te::train
