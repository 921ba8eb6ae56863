// Resuming a run and starting one with the weights of another, as command lines: what is reported, what is refused.
#include <filesystem>

#include "core/json.h"
#include "te_train_testing.h"

namespace te {
namespace {

using testing::expect_refused;
using testing::read_file;
using testing::Result;
using testing::TrainFolder;
using testing::write_file;

class Resuming : public ::testing::Test {
 protected:
  Resuming() {
    EXPECT_EQ(folder_.run("a", {"training.train_steps=2"}).code, 0);
    folder_checkpoint_ = folder_.checkpoint("a", 2);
  }
  Result resume(const std::vector<std::string>& overrides = {}) {
    std::vector<std::string> all = {"checkpoint.resume=" + folder_checkpoint_};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return folder_.run("b", all);
  }
  TrainFolder folder_;
  std::string folder_checkpoint_;
};

TEST_F(Resuming, RunFolderStandsForItsCheckpoints) {
  const std::string run = folder_.run_folder("a");
  EXPECT_EQ(folder_.run("b", {"checkpoint.resume=" + run}).code, 0);
  EXPECT_EQ(folder_.column("b", "step").front(), 3);
  const Result started = folder_.run("c", {"checkpoint.init_from=" + run});
  EXPECT_EQ(started.code, 0) << started.error;
  TE_EXPECT_CONTAINS(started.out + started.error, "starts with the weights of " + folder_checkpoint_);
  const Result inspected = folder_.run_raw("inspect-fp8 --checkpoint " + run + " --batches 1");
  EXPECT_EQ(inspected.code, 0) << inspected.error;
  TE_EXPECT_CONTAINS(inspected.out, folder_checkpoint_ + " (step 2)");
  expect_refused(folder_.run("d", {"checkpoint.resume=true"}), "did you mean 'auto'?");
}

TEST_F(Resuming, CheckpointOfAnotherModelIsRefused) {
  expect_refused(resume({"model.num_layers=3"}), "model.num_layers is 2, but this config has 3");
  expect_refused(resume({"model.ffn_hidden_size=64"}), "model.ffn_hidden_size");
  expect_refused(resume({"model.family=gpt", "model.num_query_groups=4"}), "model.family is llama");
  EXPECT_EQ(resume().code, 0);
}

// The same number of scales, but of another layer.
TEST_F(Resuming, Fp8ScalesOfOtherLayers) {
  EXPECT_EQ(
      folder_.run("f", {"training.train_steps=2", "precision.fp8=hybrid", "precision.first_layers_bf16=1"})
          .code,
      0);
  const std::string saved = "checkpoint.resume=" + folder_.checkpoint("f", 2);
  expect_refused(folder_.run("g", {saved, "precision.fp8=hybrid", "precision.last_layers_bf16=1"}),
                 "precision.first_layers_bf16");
  EXPECT_EQ(folder_.run("g", {saved, "precision.fp8=hybrid", "precision.first_layers_bf16=1"}).code, 0);
}

TEST_F(Resuming, MissingOrDamagedCheckpointIsRefused) {
  const std::string manifest = folder_checkpoint_ + "/manifest.json", good = read_file(manifest);
  expect_refused(folder_.run("b", {"checkpoint.resume=" + (folder_ / "nowhere")}), "manifest.json");
  const std::string weights = read_file(folder_checkpoint_ + "/model.safetensors");
  std::string altered = weights;
  altered[altered.size() - 5] ^= 1;
  write_file(folder_checkpoint_ + "/model.safetensors", altered);
  expect_refused(resume(), "model.safetensors: tensor ");
  write_file(folder_checkpoint_ + "/model.safetensors", weights);
  std::filesystem::resize_file(folder_checkpoint_ + "/optimizer.safetensors", 5000);
  expect_refused(resume(), "optimizer.safetensors");
  std::filesystem::resize_file(folder_checkpoint_ + "/model.safetensors", 3);
  expect_refused(resume(), "model.safetensors");
  write_file(manifest, good.substr(0, 40));
  expect_refused(resume(), "manifest.json");
  std::string edited = good;
  edited.replace(edited.find("\"step\": 2"), 9, "\"step\": 1");
  write_file(manifest, edited);
  expect_refused(resume(), "manifest_checksum");
  // `latest` names a missing checkpoint, and there is no other complete one.
  write_file(folder_.run_folder("a") + "/checkpoints/latest", "step_00000099\n");
  expect_refused(folder_.run("a", {"checkpoint.resume=auto"}), "step_00000099");
  write_file(folder_.run_folder("a") + "/checkpoints/latest", "");
  expect_refused(folder_.run("a", {"checkpoint.resume=auto"}), "checkpoints/latest");
}

TEST_F(Resuming, ChangedKeysAreListedWithTheirEffect) {
  const Result same = resume({"training.train_steps=2"});
  EXPECT_EQ(same.out.find("the config differs"), std::string::npos) << same.out;
  const Result result =
      folder_.run("c", {"checkpoint.resume=" + folder_checkpoint_, "training.train_steps=8",
                        "training.seed=5", "optimizer.decay_steps=8", "model.seq_length=8"});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "the config differs from the checkpoint's:\n");
  TE_EXPECT_CONTAINS(result.out, "  training.seed: 1234 -> 5  (other data order");
  TE_EXPECT_CONTAINS(result.out, "  model.seq_length: 16 -> 8  (samples are split differently");
  TE_EXPECT_CONTAINS(result.out,
                     "  optimizer.decay_steps: 6 -> 8  (the step at which the learning rate reaches "
                     "optimizer.min_lr)\n");
  TE_EXPECT_CONTAINS(result.out, "  learning rate of step 3: ");
}

TEST_F(Resuming, WithoutLatestUsesTheNewestCompleteCheckpoint) {
  std::filesystem::remove(folder_.run_folder("a") + "/checkpoints/latest");
  const Result result = folder_.run("a", {"checkpoint.resume=auto"});
  EXPECT_EQ(result.code, 0);
  TE_EXPECT_CONTAINS(result.out, "latest: not found; using step_00000002");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  // A checkpoint directory is accepted as a path, too.
  EXPECT_EQ(folder_.run("b", {"checkpoint.resume=" + folder_.run_folder("a") + "/checkpoints"}).code, 0);
}

TEST_F(Resuming, WithoutMoments) {
  const Result result = resume({"checkpoint.load_optimizer=false"});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "Adam moments are not loaded and start at zero");
  EXPECT_EQ(folder_.run("c", {"checkpoint.save_optimizer=false"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("c", 6) + "/optimizer.safetensors"));
  const Result more = folder_.run("c", {"checkpoint.resume=auto", "training.train_steps=8"});
  EXPECT_EQ(more.code, 0) << more.error;
  TE_EXPECT_CONTAINS(more.out, "Adam moments are not loaded and start at zero");
  TE_EXPECT_CONTAINS(read_file(folder_.run_folder("c") + "/run.json"), "\"zero_moments_after\": 6");
  EXPECT_EQ(folder_.csv("c").size(), 8u);
}

// Fine-tuning starts with the weights of another run at step 1; when it is killed and resumed, its own checkpoint is
// used.
TEST_F(Resuming, NewRunMayStartWithWeightsOfAnother) {
  const std::vector<std::string> tune = {"checkpoint.init_from=" + folder_checkpoint_,
                                         "checkpoint.resume=auto", "precision.fp8=hybrid"};
  const Result result = folder_.run("t", tune);
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "starts with the weights of " + folder_checkpoint_);
  TE_EXPECT_CONTAINS(result.out, "FP8 scales calibrated");
  EXPECT_EQ(folder_.column("t", "step").size(), 6u);
  EXPECT_LT(folder_.column("t", "loss")[0], folder_.column("a", "loss")[0] - 0.005);
  TE_EXPECT_CONTAINS(folder_.run("t", tune).out, "resumed from " + folder_.checkpoint("t", 6));
  expect_refused(folder_.run("u", {"checkpoint.init_from=" + (folder_ / "nowhere")}),
                 "checkpoint.init_from: " + (folder_ / "nowhere/manifest.json: not found"));
  std::filesystem::create_directories(folder_ / "hf");
  write_file(folder_ / "hf/config.json", "{}");
  expect_refused(folder_.run("u", {"checkpoint.init_from=" + (folder_ / "hf")}),
                 "checkpoint.init_from: " + (folder_ / "hf/config.json"));
  expect_refused(
      folder_.run("u", {"checkpoint.resume=" + (folder_ / "hf")}),
      "is a Hugging Face folder, not a checkpoint; start a new run from it with checkpoint.init_from");
}

// The logs of a crashed run may extend past its checkpoint and end with half a line; after the resume they have each
// step once.
TEST_F(Resuming, LogsContinueAfterTheCheckpoint) {
  const std::string csv = folder_.run_folder("a") + "/loss.csv",
                    jsonl = folder_.run_folder("a") + "/metrics.jsonl";
  const std::string rows = read_file(csv), records = read_file(jsonl);
  write_file(csv, rows + "3,12,192,9.0,,1,1,1,1,1,0\n4,16,256,9.0");
  write_file(jsonl, records + "{\"step\": 3, \"loss\": 9.0}\n{\"step\": 4, \"lo");
  EXPECT_EQ(folder_.run("a", {"checkpoint.resume=auto"}).code, 0);
  EXPECT_EQ(folder_.column("a", "step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read_file(csv).substr(0, rows.size()), rows);
  for (double loss : folder_.column("a", "loss")) EXPECT_LT(loss, 8.0);
  int64_t step = 0;
  for (const std::string& line : testing::split(read_file(jsonl), '\n'))
    EXPECT_EQ(parse_json(line)["step"], ++step);
  EXPECT_EQ(step, 6);
  // A missing header is restored.
  write_file(csv, rows.substr(rows.find('\n') + 1));
  EXPECT_EQ(folder_.run("a", {"checkpoint.resume=" + folder_checkpoint_}).code, 0);
  EXPECT_EQ(folder_.column("a", "step"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace te
