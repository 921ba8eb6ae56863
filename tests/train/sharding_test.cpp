// parallel.shard with everything else that reads weights and state in a run: the guard, which trains in BF16 and
// restores the state, FP8 statistics with the alignment of SwiGLU, FP8 records of all weights, saves. With one
// microbatch per step everything is bitwise equal to a run that shards only the optimizer.
#include "te_train_testing.h"

namespace te {
namespace {

using testing::Result;
using testing::TrainFolder;

TEST(Sharding, DoesNotChangeTheOutputOfARun) {
  TrainFolder folder;
  folder.use_ranks(2);
  folder.write_config(
      "base",
      "model: {family: llama, num_layers: 4, hidden_size: 32, ffn_hidden_size: 64,\n"
      "        num_attention_heads: 4, num_query_groups: 2, vocab_size: 257, seq_length: 16}\n"
      "training: {micro_batch_size: 2, global_batch_size: 4, train_steps: 9, device: cpu}\n"
      "optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, store_param_remainders: true}\n"
      "precision: {fp8: hybrid, amax_history_len: 8}\n"
      "parallel: {bucket_size: 1000}\n"
      "guard: {every: 4, compare_steps: 2, action: rollback}\n"
      "logging: {fp8_statistics_every: 3}\n"
      "data: {train: " +
          (folder / "train") + "}\n");
  const std::vector<std::string> shards = {"optimizer", "gradients", "parameters"};
  for (const std::string& shard : shards) {
    const Result result = folder.run(shard, {"parallel.shard=" + shard});
    ASSERT_EQ(result.code, 0) << result.error;
  }
  const auto statistics = [&](const std::string& run) {
    return testing::read_file(folder.run_folder(run) + "/fp8_statistics.jsonl");
  };
  EXPECT_FALSE(statistics("optimizer").empty());
  for (const std::string& shard : {shards[1], shards[2]}) {
    SCOPED_TRACE(shard);
    EXPECT_EQ(folder.column(shard, "loss"), folder.column("optimizer", "loss"));
    EXPECT_EQ(folder.column(shard, "grad_norm"), folder.column("optimizer", "grad_norm"));
    EXPECT_EQ(statistics(shard), statistics("optimizer"));
    EXPECT_EQ(folder.checkpoint_bytes(shard, 9), folder.checkpoint_bytes("optimizer", 9));
  }
}

}  // namespace
}  // namespace te
