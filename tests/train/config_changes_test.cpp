// What a resumed run says about keys that differ from its checkpoint's.
#include "train/config_changes.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "config/config.h"
#include "testing/files.h"

namespace te::train {
namespace {

constexpr const char* kBlendConfig =
    "model: {family: llama, num_layers: 2, hidden_size: 64, ffn_hidden_size: 96, num_attention_heads: 4,\n"
    "        vocab_size: 100, seq_length: 32}\n"
    "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 100}\n"
    "data: {train: [[3, d/a], [7, d/b]]}\n";

/// What a run with `base` and `changes` says about a checkpoint of `base`.
std::string described(const std::vector<std::string>& base, std::vector<std::string> changes) {
  const std::string before = config::to_yaml(config::parse_config(kBlendConfig, "run.yaml", base));
  changes.insert(changes.begin(), base.begin(), base.end());
  return describe_config_changes(before, config::parse_config(kBlendConfig, "run.yaml", changes), 10);
}

TEST(ConfigChanges, OtherSpellingsOfTheSameDataAreTheSame) {
  const std::string here = std::filesystem::current_path().string();
  for (const std::string& same :
       {std::string("[[0.3, d/a], [0.7, d/b]]"), std::string("[[3, ./d/a], [7, d/../d/b]]"),
        "[[3, " + here + "/d/a], [7, d/b]]"})
    TE_EXPECT_CONTAINS(described({}, {"data.train=" + same}), "  (the same files in the same order)\n");
  TE_EXPECT_CONTAINS(described({}, {"data.train=[[3, e/a], [7, d/b]]"}),
                     "  (other samples unless the files have the same data: ");
  for (const char* other : {"[[7, d/a], [3, d/b]]", "d/a", "[d/a, d/b]"})
    TE_EXPECT_CONTAINS(described({}, {std::string("data.train=") + other}),
                       "  (other samples in a different order: ");
}

TEST(ConfigChanges, MicrobatchesAndLayoutsCanChangeMoreThanTheOrderOfSums) {
  const std::string rounding = "  (different summation order: equal within rounding)\n";
  const std::string micro = "training.micro_batch_size=1", context = "parallel.context=2",
                    pipeline = "parallel.pipeline=2";
  for (const std::string& key : {micro, context, pipeline})
    TE_EXPECT_CONTAINS(described({}, {key}), rounding);

  const std::vector<std::string> dropout = {"model.attention_dropout=0.1"};
  TE_EXPECT_CONTAINS(described(dropout, {micro}), "  (other attention dropout masks)\n");
  TE_EXPECT_CONTAINS(described(dropout, {context}), rounding);

  const std::string capacity_effect = "  (other tokens are above the experts' capacity)\n",
                    balance_effect = "  (the balance loss of experts counts other tokens together)\n";
  const std::vector<std::string> experts = {"model.num_moe_experts=4"};
  TE_EXPECT_CONTAINS(described(experts, {micro}), rounding);
  std::vector<std::string> capacity = experts;
  capacity.emplace_back("model.moe_expert_capacity_factor=1");
  TE_EXPECT_CONTAINS(described(capacity, {micro}), capacity_effect);
  TE_EXPECT_CONTAINS(described(capacity, {context}), capacity_effect);
  TE_EXPECT_CONTAINS(described(capacity, {pipeline}), rounding);
  std::vector<std::string> balance = experts;
  balance.emplace_back("model.moe_aux_loss_coeff=0.01");
  TE_EXPECT_CONTAINS(described(balance, {micro}), balance_effect);
  TE_EXPECT_CONTAINS(described(balance, {pipeline}), rounding);
  balance.emplace_back("model.moe_router_load_balancing_type=seq_aux_loss");
  TE_EXPECT_CONTAINS(described(balance, {micro}), rounding);
  balance.back() = "model.moe_router_load_balancing_type=global_aux_loss";
  TE_EXPECT_CONTAINS(described(balance, {pipeline}), balance_effect);
}

}  // namespace
}  // namespace te::train
