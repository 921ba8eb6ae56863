// Ranks of a job that would train different runs.
#include "train/same_on_all_ranks.h"

#include <gtest/gtest.h>

#include <functional>

#include "testing/mpi.h"
#include "testing/testing.h"

namespace te::testing {
namespace {

std::string failure_of(const std::function<void()>& check) {
  try {
    check();
  } catch (const parallel::JobFailure& failure) {
    EXPECT_EQ(failure.exit_code(), 2);
    return failure.what();
  }
  return "";
}

TEST(SameOnAllRanks, ConfigAndProgram) {
  config::Config config = config::parse_config(
      "model: {family: llama, num_layers: 1, hidden_size: 32, ffn_hidden_size: 48, num_attention_heads: 4,\n"
      "        vocab_size: 257, seq_length: 16}\n"
      "training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 6}\n"
      "data: {synthetic: true}\n",
      "small.yaml", {});
  const auto check = [&](const std::string& program, bool overwrite) {
    return failure_of([&] { train::check_same_run(world(), config, program, overwrite); });
  };
  EXPECT_EQ(check("te-train 1", true), "");
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  const bool last = world().rank() == world().size() - 1;
  TE_EXPECT_CONTAINS(check(last ? "te-train 2" : "te-train 1", false),
                     "runs \"te-train 2\", but rank 0 \"te-train 1\"");
  TE_EXPECT_CONTAINS(check("te-train 1", last), "--overwrite");
  if (last) config.optimizer.lr = 0.125, config.training.seed = 99;
  const std::string found = check("te-train 1", false);
  TE_EXPECT_CONTAINS(found, "its config differs from rank 0's in ");
  TE_EXPECT_CONTAINS(found, "optimizer.lr (0.125, there ");
  TE_EXPECT_CONTAINS(found, "training.seed (99, there ");
}

TEST(SameOnAllRanks, Datasets) {
  std::vector<checkpoint::Dataset> datasets = {{"data.train", "data/a", 3, 40, 0xab},
                                               {"data.valid", "data/b", 1, 9, 1}};
  const auto check = [&] { return failure_of([&] { train::check_same_datasets(world(), datasets); }); };
  EXPECT_EQ(check(), "");
  if (world().rank() == 1) datasets.clear();  // has not looked at them
  EXPECT_EQ(check(), "");
  if (world().size() == 1) GTEST_SKIP() << "one rank";
  datasets = {{"data.train", "data/a", 3, 40, 0xab},
              {"data.valid", "data/b", 1, world().rank() == 0 ? 9 : 8, 1}};
  const std::string found = check();
  TE_EXPECT_CONTAINS(found, " has data.valid: data/b (1 documents, 8 tokens, ");
  TE_EXPECT_CONTAINS(found, ", but the host of rank 0 data.valid: data/b (1 documents, 9 tokens, ");
}

}  // namespace
}  // namespace te::testing
