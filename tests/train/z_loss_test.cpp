// Runs with z-loss: their logs, and its effect on training.
#include <nlohmann/json.hpp>

#include "te_train_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;
TEST(ZLossTraining, IsReportedNextToTheLoss) {
  const TrainFolder folder;
  const Overrides run = {"precision.dtype=fp32", "training.eval_interval=6", "training.eval_microbatches=2"};
  Overrides with = run;
  with.push_back("training.z_loss_coefficient=0.01");
  ASSERT_EQ(folder.run("without", run).code, 0);
  ASSERT_EQ(folder.run("with", with).code, 0);
  const std::vector<json> without = folder.records("without"), small = folder.records("with");
  ASSERT_EQ(small.size(), 6u);
  for (const json& record : without) EXPECT_FALSE(record.contains("z_loss"));
  // The logits of a new model are small: log Z is about log(257).
  const double log_z = std::log(257.0);
  EXPECT_NEAR(small[0]["z_loss"].get<double>(), 0.01 * log_z * log_z, 0.01 * 0.01 * log_z * log_z);
  // The loss is the cross entropy: before the first update it is bitwise equal to that of the run without z-loss.
  EXPECT_EQ(small[0]["loss"], without[0]["loss"]);
  EXPECT_NE(small[0]["grad_norm"], without[0]["grad_norm"]);
  // So is the validation loss: similar weights give a similar value, without the 0.3 of the z-loss.
  EXPECT_NEAR(small[5]["valid_loss"].get<double>(), without[5]["valid_loss"].get<double>(), 0.05);
}

// The mean of log(Z)^2 after 40 steps, for a run that penalizes it and one that only measures it.
TEST(ZLossTraining, KeepsLogZSmall) {
  const TrainFolder folder;
  const auto log_z_squared = [&](double coefficient) {
    const std::string run = fmt::format("{}", coefficient);
    EXPECT_EQ(folder
                  .run(run, {"precision.dtype=fp32", "training.train_steps=40", "optimizer.decay_steps=40",
                             "training.z_loss_coefficient=" + run})
                  .code,
              0);
    return folder.records(run).back()["z_loss"].get<double>() / coefficient;
  };
  EXPECT_LT(log_z_squared(0.1), 0.85 * log_z_squared(0.000001));
}

}  // namespace
}  // namespace te::testing
