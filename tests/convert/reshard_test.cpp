// te-convert reshard writes, byte for byte, the files that te-train's ranks write in that layout. Resharding to another
// layout and back gives the original files.
#include <algorithm>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "tools_testing.h"

namespace te {
namespace {

using testing::expect_convert_refused;
using testing::read_file;
using testing::Result;
using testing::TrainFolder;
using Overrides = std::vector<std::string>;
namespace fs = std::filesystem;

constexpr const char* kLlama =
    "model: {family: llama, num_layers: 2, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4,\n"
    "        num_query_groups: 2, vocab_size: 257, seq_length: 16, make_vocab_size_divisible_by: 2}\n"
    "precision: {fp8: hybrid, amax_history_len: 4}\n";
/// Biases, tied embeddings (the last stage has a copy), FP32.
constexpr const char* kGpt =
    "model: {family: gpt, num_layers: 4, hidden_size: 32, ffn_hidden_size: 128, num_attention_heads: 4,\n"
    "        vocab_size: 257, seq_length: 16, tie_word_embeddings: true}\n"
    "precision: {dtype: fp32}\n";

/// A dense layer and two with experts; the router's bias is state, too.
constexpr const char* kMixture =
    "model: {family: llama, num_layers: 3, hidden_size: 32, ffn_hidden_size: 64, num_attention_heads: 4,\n"
    "        num_query_groups: 2, vocab_size: 257, seq_length: 16, make_vocab_size_divisible_by: 4,\n"
    "        num_moe_experts: 4, moe_ffn_hidden_size: 32, moe_shared_expert_intermediate_size: 16,\n"
    "        first_k_dense: 1, moe_router_enable_expert_bias: true, moe_aux_loss_coeff: 0.01}\n"
    "precision: {fp8: hybrid, amax_history_len: 4}\n";

class Reshard : public ::testing::Test {
 protected:
  /// The checkpoint of a run of two steps.
  std::string train(const char* model, int ranks, const Overrides& overrides) {
    folder_.write_config(
        "base", model + ("training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 2, device: "
                         "cpu}\ndata: {train: " +
                         (folder_ / "train") + "}\nparallel: {bucket_size: 1000}\n"));
    if (ranks > 1) folder_.use_ranks(ranks);
    const Result result = folder_.run("a", overrides);
    EXPECT_EQ(result.code, 0) << result.error;
    return folder_.checkpoint("a", 2);
  }
  /// Returns the new checkpoint.
  std::string reshard(const std::string& checkpoint, const std::string& name, const std::string& layout) {
    const Result result =
        te_convert(folder_, "reshard " + checkpoint + " --out " + (folder_ / name) + " " + layout);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(read_file((folder_ / name) + "/latest"), "step_00000002\n");
    return (folder_ / name) + "/step_00000002";
  }
  static std::vector<std::string> names(const std::string& checkpoint) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(checkpoint)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  /// The same files with the same bytes, except for config and checksum of the manifests.
  static void expect_same_files(const std::string& a, const std::string& b) {
    ASSERT_EQ(names(a), names(b));
    for (const std::string& name : names(a)) {
      if (name == "manifest.json") continue;
      EXPECT_TRUE(read_file(a + "/" + name) == read_file(b + "/" + name)) << name;
    }
    const auto body = [](const std::string& checkpoint) {
      const std::string text = read_file(checkpoint + "/manifest.json");
      const size_t config = text.find("  \"config\""), rest = text.find("  \"checksum_algorithm\"");
      return text.substr(0, config) + text.substr(rest, text.rfind("  \"manifest_checksum\"") - rest);
    };
    EXPECT_EQ(body(a), body(b));
  }

  TrainFolder folder_;
};

TEST_F(Reshard, RoundTripGivesTheSameFiles) {
  const std::string one = train(kLlama, 1, {});
  const std::string eight = reshard(one, "eight", "--tensor 2 --pipeline 2 --data 2");
  EXPECT_EQ(names(eight).size(),
            1u + 8u + 8u + 2u);  // the manifest, weights, moments, FP8 state per stage
  checkpoint::Reader(eight).verify_all();
  expect_same_files(reshard(eight + "/", "back", ""), one);
}

TEST_F(Reshard, WritesTheFilesOfTheRanks) {
  const std::string four = train(kGpt, 4,
                                 {"parallel.tensor=2", "parallel.pipeline=2", "parallel.schedule=interleaved",
                                  "parallel.virtual_stages=2", "optimizer.exp_avg_dtype=bf16"});
  EXPECT_EQ(checkpoint::Reader(four).at("exp_avg/layers.1.mlp.linear_fc1.weight").dtype, DType::bf16);
  const std::string one = reshard(four, "one", "");
  EXPECT_EQ(names(one),
            (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
  const std::string two = reshard(one, "two", "--data 2");
  expect_same_files(reshard(two, "four", "--tensor 2 --pipeline 2 --virtual-stages 2"), four);
  // Training resumes from it with the same bits as from the original.
  folder_.use_ranks(2);
  for (const auto& [name, checkpoint] : {std::pair{"b", four}, std::pair{"c", two}}) {
    const Result result = folder_.run(name, {"training.train_steps=3", "checkpoint.resume=" + checkpoint});
    EXPECT_EQ(result.code, 0) << result.error;
  }
  EXPECT_TRUE(folder_.checkpoint_bytes("b", 3) == folder_.checkpoint_bytes("c", 3));
}

TEST_F(Reshard, WritesTheFilesOfRanksThatDivideExperts) {
  const std::string four =
      train(kMixture, 4, {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"});
  const std::string one = reshard(four, "one", "");
  std::string before = one;
  int made = 0;
  // Each layout from the one before.
  for (const char* layout :
       {"--tensor 2", "--expert 4 --data 4", "--tensor 2 --expert 4 --data 2",
        "--tensor 2 --pipeline 2 --expert 2", "--expert 2 --data 4", "--tensor 2 --data 2"}) {
    SCOPED_TRACE(layout);
    before = reshard(before, "made_" + std::to_string(++made), layout);
    checkpoint::Reader(before).verify_all();
    expect_same_files(reshard(before, "back_" + std::to_string(made), ""), one);
  }
  expect_same_files(reshard(before, "four", "--tensor 2 --expert 2 --data 2"), four);
}

TEST_F(Reshard, ReadsCheckpointsOfContextParallelRanks) {
  const std::string two = train(kLlama, 2, {"parallel.context=2"});
  const std::string tensor = reshard(two, "tensor", "--tensor 2");
  EXPECT_EQ(config::parse_config(checkpoint::Reader(tensor).config(), "manifest").parallel.context, 1);
  expect_same_files(reshard(tensor, "back", "--data 2"), two);
}

// What depends on the layout but not on the checkpoint follows the layout.
TEST_F(Reshard, LeavesOutWhatALayoutOfExpertsDoesNotSupport) {
  const std::string one =
      train(kMixture, 1,
            {"precision.fp8=off", "model.moe_router_load_balancing_type=seq_aux_loss",
             "logging.generate_every=2", "logging.generate_prompts=[the]", "data.tokenizer=bytes"});
  const checkpoint::Reader reader(reshard(one, "two", "--tensor 2 --expert 2"));
  const config::Config config = config::parse_config(reader.config(), "manifest");
  EXPECT_TRUE(config.parallel.sequence);
  EXPECT_EQ(config.training.micro_batch_size, 1);
  EXPECT_EQ(config.logging.generate_every, 0);
}

TEST_F(Reshard, ReshardsTheMomentsOfMuon) {
  const std::string one = train(kLlama, 1, {"optimizer.name=muon"});
  EXPECT_EQ(checkpoint::Reader(one).find("exp_avg_sq/layers.1.mlp.linear_fc1.weight"), nullptr);
  const std::string four = reshard(one, "four", "--tensor 2 --data 2");
  checkpoint::Reader(four).verify_all();
  expect_same_files(reshard(four, "back", ""), one);
}

TEST_F(Reshard, DropsTheMomentsAndPadsTheVocabulary) {
  const std::string one = train(kLlama, 1, {"model.make_vocab_size_divisible_by=1"});
  const std::string half = reshard(one, "half", "--no-optimizer --tensor 2");
  const checkpoint::Reader reader(half);
  EXPECT_FALSE(reader.has_optimizer());
  EXPECT_EQ(reader.at("output_layer.weight").shape, (std::vector<int64_t>{258, 32}));  // it was 257
  std::vector<float> padding(32, 0.0f);
  reader.read_rows("output_layer.weight", 257, 1, padding.data());
  EXPECT_NE(padding, std::vector<float>(32, 0.0f));  // initial values
  EXPECT_EQ(names(half), (std::vector<std::string>{"fp8-00001-of-00002.safetensors", "manifest.json",
                                                   "model-00001-of-00002.safetensors",
                                                   "model-00002-of-00002.safetensors"}));
}

TEST_F(Reshard, RefusesInOneLineAndLeavesNothing) {
  const std::string one = train(kLlama, 1, {});
  const auto refused = [&](const std::string& arguments, const std::string& part,
                           const std::string& before = "") {
    SCOPED_TRACE(arguments);
    expect_convert_refused(te_convert(folder_, "reshard " + arguments, before), part);
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  };
  const std::string out = " --out " + (folder_ / "out");
  refused(one + out + " --tensor 3", "parallel.tensor");
  refused(one + out + " --pipeline 3", "parallel.pipeline");
  refused(one + out + " --tensor 0", "--tensor");
  refused((folder_ / "nothing") + out, "nothing");
  refused(one + " --out /proc/nowhere", "/proc/nowhere");
  refused(one + out, "File too large", "trap '' XFSZ; ulimit -f 64; ");  // simulates a full disk
  refused(one + " --out " + fs::path(one).parent_path().string(), "exists");
  testing::flip_byte(one + "/optimizer.safetensors", 100);
  refused(one + out, "optimizer.safetensors: tensor ");
  testing::flip_byte(one + "/manifest.json", 100);
  refused(one + out, "manifest.json: manifest_checksum");
}

}  // namespace
}  // namespace te
