// optimizer.groups in training, with AdamW and Muon.
#include "model/tiny_model.h"
#include "testing/testing.h"
#include "training_run.h"

namespace te::testing {
namespace {

/// The FP32 weights after three steps, by name.
std::map<std::string, std::string> trained(config::Config config, const std::vector<std::string>& groups) {
  config.optimizer.groups = groups;
  TrainingRun run(config);
  for (int step = 1; step <= 3; ++step) run.step(step);
  std::map<std::string, std::string> weights;
  for (const parameters::Parameter& parameter : run.parameters())
    weights[parameter.name] = bytes_at(parameter.value);
  return weights;
}

/// The weights before the first step.
std::map<std::string, std::string> initial(const config::Config& config) {
  TrainingRun run(config);
  std::map<std::string, std::string> weights;
  for (const parameters::Parameter& parameter : run.parameters())
    weights[parameter.name] = bytes_at(parameter.value);
  return weights;
}

// A learning rate of 0 keeps the selected weights; settings that are equal to the defaults change nothing.
TEST(UpdateGroups, SelectWhatChanges) {
  for (const config::OptimizerName name : {config::OptimizerName::adamw, config::OptimizerName::muon}) {
    config::Config config = tiny_config(config::Family::llama);
    config.optimizer.name = name;
    const auto before = initial(config), plain = trained(config, {});
    EXPECT_EQ(trained(config, {"matrices: lr_factor 1, weight_decay 0.1", "norms: weight_decay 0"}), plain);
    const auto kept = trained(config, {"linear_*, norms: lr_factor 3", "linear_fc1, norms: lr_factor 0"});
    for (const auto& [weight, bytes] : kept) {
      const bool still =
          weight.find("linear_fc1") != std::string::npos || weight.find("norm") != std::string::npos;
      EXPECT_EQ(bytes == before.at(weight), still) << weight;
    }
  }
}

TEST(UpdateGroups, RulesWithoutAParameterAreRefused) {
  config::Config config = tiny_config(config::Family::llama);
  config.optimizer.groups = {"norms: lr_factor 2", "router: lr_factor 2"};
  try {
    TrainingRun run(config);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("\"router: lr_factor 2\" selects no parameter"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace te::testing
