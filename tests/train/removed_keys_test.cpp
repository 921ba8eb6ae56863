// Checkpoints of earlier versions, whose stored config has keys that were removed.
#include "checkpoint/manifest.h"
#include "te_train_testing.h"

namespace te::testing {
namespace {

const Overrides kMuonRun = {"optimizer.name=muon",
                            "model.rope_scaling={rope_type: llama3, factor: 32, "
                            "low_freq_factor: 1.5, original_max_position_embeddings: 16}"};

class RemovedKeysOfACheckpoint : public ::testing::Test {
 protected:
  RemovedKeysOfACheckpoint() {
    run(folder_, "whole", kMuonRun);
    run(folder_, "earlier", kMuonRun + Overrides{"training.train_steps=3", "optimizer.decay_steps=6"});
    checkpoint_ = folder_.checkpoint("earlier", 3);
    replace("rope_scaling: {",
            "rope_scaling: llama3\n  rope_scaling_factor: 32.0\n"
            "  rope_scaling_low_freq_factor: 1.5\n  rope_scaling_high_freq_factor: 4.0\n"
            "  rope_scaling_original_max_position_embeddings: 16\n"
            "  rope_scaling_beta_fast: 32.0\n  rope_scaling_beta_slow: 1.0\n"
            "  rope_scaling_attention_factor: 0.0\n  rope_scaling_truncate: true\n");
    replace("muon_momentum:",
            "muon_momentum: 0.95\n  muon_nesterov: true\n  muon_ns_steps: 5\n"
            "  muon_scale: 0.2\n");
    replace("check:", "check_tokenizer: true\n  check_fingerprint: true\n");
    replace("transport:", "tensor_transport: nccl\n  data_transport: nccl\n  overlap_receive: false\n");
    replace("every: 1\n", "every: 1\n  csv: \"loss.csv\"\n  jsonl: true\n");
  }
  /// Replaces the line of the stored config that contains `part`.
  void replace(const std::string& part, const std::string& with) {
    const std::string path = checkpoint_ + "/manifest.json";
    checkpoint::Manifest manifest = checkpoint::parse_manifest(path, read_file(path));
    std::string& config = manifest.config;
    const size_t at = config.find("  " + part);
    ASSERT_NE(at, std::string::npos) << part << " is not in\n" << config;
    config.replace(at, config.find('\n', at) + 1 - at, "  " + with);
    write_file(path, checkpoint::to_text(manifest));
  }
  Result resume(const std::string& name) const {
    return folder_.run(name, kMuonRun + Overrides{"checkpoint.resume=" + checkpoint_});
  }
  TrainFolder folder_;
  std::string checkpoint_;
};

TEST_F(RemovedKeysOfACheckpoint, ARunOfAnEarlierVersionContinuesBitwiseEqual) {
  const Result result = resume("resumed");
  ASSERT_EQ(result.code, 0) << result.error;
  for (const char* part : {"model.", "optimizer.muon_", "parallel.", "data."})
    EXPECT_EQ(result.out.find(std::string("  ") + part), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("was trained with"), std::string::npos) << result.out;
  EXPECT_TRUE(folder_.checkpoint_bytes("resumed", 6) == folder_.checkpoint_bytes("whole", 6));
  EXPECT_EQ(folder_.run("tuned", kMuonRun + Overrides{"checkpoint.init_from=" + checkpoint_}).code, 0);
  const Result inspected = folder_.run_raw("inspect-fp8 --checkpoint " + checkpoint_ + " --batches 1");
  EXPECT_EQ(inspected.code, 0) << inspected.error;
  // Another scaling than the stored one is noticed.
  const Result other = folder_.run("other", {"optimizer.name=muon", "checkpoint.resume=" + checkpoint_});
  TE_EXPECT_CONTAINS(other.out, "was trained with model.rope_scaling {rope_type: llama3, factor: 32.0");
}

TEST_F(RemovedKeysOfACheckpoint, ARunThatCannotBeContinuedIsRefused) {
  replace("muon_ns_steps:", "muon_ns_steps: 6\n");
  const Result result = resume("resumed");
  expect_refused(result,
                 "optimizer.muon_ns_steps: 6, which was removed: Muon runs 5 Newton-Schulz iterations");
  EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("resumed") + "/loss.csv"));
  // Its weights can be used.
  EXPECT_EQ(folder_.run("tuned", kMuonRun + Overrides{"checkpoint.init_from=" + checkpoint_}).code, 0);
}

}  // namespace
}  // namespace te::testing
