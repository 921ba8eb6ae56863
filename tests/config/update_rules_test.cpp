// The rules of optimizer.groups: selectors, settings and invalid rules.
#include "config/update_rules.h"

#include "config_testing.h"

namespace te::config {
namespace {

bool selects(const std::string& selectors, ParameterId parameter) {
  OptimizerConfig optimizer;
  optimizer.groups = {selectors + ": lr_factor 2"};
  return update_rules(optimizer).at(0).selects(parameter);
}

TEST(UpdateRules, SelectWeightsByKindAndName) {
  const ParameterId embedding{ParameterRole::word_embeddings}, output{ParameterRole::output_layer},
      norm{ParameterRole::input_norm, 0}, norm_bias{ParameterRole::input_norm, 0, ParameterPart::bias},
      fc1{ParameterRole::linear_fc1, 1}, fc1_bias{ParameterRole::linear_fc1, 1, ParameterPart::bias},
      experts{ParameterRole::experts_fc1, 1}, expert_bias{ParameterRole::router, 1, ParameterPart::bias},
      lora{ParameterRole::linear_qkv, 1, ParameterPart::lora_a};
  EXPECT_TRUE(selects("embeddings", embedding));
  EXPECT_FALSE(selects("embeddings", output));
  EXPECT_TRUE(selects("norms", norm));
  EXPECT_FALSE(selects("norms", norm_bias));
  EXPECT_TRUE(selects("norms , biases", norm_bias));
  EXPECT_TRUE(selects("biases", fc1_bias));
  EXPECT_FALSE(selects("biases", fc1));
  EXPECT_FALSE(selects("biases", expert_bias));
  EXPECT_TRUE(selects("matrices", fc1));
  EXPECT_TRUE(selects("matrices", experts));
  EXPECT_FALSE(selects("matrices", output));
  EXPECT_FALSE(selects("matrices", embedding));
  EXPECT_TRUE(selects("linear_*", fc1));
  EXPECT_FALSE(selects("linear_*", fc1_bias));
  EXPECT_FALSE(selects("linear_*", experts));
  EXPECT_TRUE(selects("*linear_fc1", experts));
  EXPECT_TRUE(selects("linear_qkv", lora));
}

TEST(UpdateRules, ReadSettings) {
  OptimizerConfig optimizer;
  optimizer.groups = {"norms:lr_factor 0.5,  weight_decay 1e-2", "biases: weight_decay 0"};
  const std::vector<UpdateRule> rules = update_rules(optimizer);
  EXPECT_EQ(rules[0].lr_factor, 0.5);
  EXPECT_EQ(rules[0].weight_decay, 1e-2);
  EXPECT_FALSE(rules[1].lr_factor.has_value());
  EXPECT_EQ(rules[1].weight_decay, 0.0);
}

TEST(UpdateRules, InvalidRulesAreRefused) {
  for (const auto& [rule, problem] : std::initializer_list<std::pair<std::string, std::string>>{
           {"norms lr_factor 2", "has no colon"},
           {"norm: lr_factor 2", "unknown selector \"norm\""},
           {": lr_factor 2", "unknown selector \"\""},
           {"norms: lr 2", "unknown setting \"lr 2\""},
           {"norms:", "unknown setting \"\""},
           {"norms: lr_factor", "needs 0 or a number"},
           {"norms: lr_factor -1", "needs 0 or a number"},
           {"norms: weight_decay nan", "needs 0 or a number"},
           {"norms: lr_factor 1e-46", "needs 0 or a number from 1.2e-38 to 1e6"},
           {"norms: lr_factor 2x", "needs 0 or a number"},
           {"norms: lr_factor 1, lr_factor 2", "sets lr_factor twice"}}) {
    OptimizerConfig optimizer;
    optimizer.groups = {rule};
    try {
      update_rules(optimizer);
      ADD_FAILURE() << rule;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace te::config
