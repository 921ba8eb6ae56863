// The folders of a run: two runs in one, the same command again, going back, and a damaged newest checkpoint.
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>

#include "te_train_testing.h"
#include "testing/eventually.h"
#include "train/folder_lock.h"

namespace te {
namespace {

namespace fs = std::filesystem;

using testing::eventually;
using testing::expect_refused;
using testing::read_file;
using testing::Result;
using testing::TrainFolder;
using testing::write_file;

class RunFolders : public ::testing::Test {
 protected:
  void wait_for_steps() {
    const std::string csv = folder_.run_folder("a") + "/loss.csv";
    EXPECT_TRUE(eventually([&] { return fs::exists(csv) && folder_.csv("a").size() >= 3; }));
  }
  Result run_with(const std::string& option, const std::string& run) {
    return folder_.run_raw(option + " --config " + (folder_ / "base.yaml") +
                           " --set logging.directory=" + folder_.run_folder(run));
  }
  /// Changes one byte of the newest checkpoint's weights.
  void damage(int64_t step) {
    const std::string file = folder_.checkpoint("a", step) + "/model.safetensors";
    std::string bytes = read_file(file);
    bytes[bytes.size() - 5] ^= 1;
    write_file(file, bytes);
  }
  TrainFolder folder_;
};

TEST_F(RunFolders, ASecondRunInTheFolderStops) {
  const pid_t first = folder_.start("a", {"training.train_steps=1000000", "logging.jsonl=false"});
  wait_for_steps();
  TrainFolder other;
  const std::string lock = read_file(folder_.run_folder("a") + "/run.lock");
  TE_EXPECT_CONTAINS(lock, " pid " + std::to_string(first) + " since ");
  for (const char* resume : {"never", "auto"}) {
    const Result second = other.run_raw("--config " + (other / "base.yaml") + " --set logging.directory=" +
                                        folder_.run_folder("a") + " --set checkpoint.resume=" + resume);
    expect_refused(second, "another run writes there (" + lock.substr(0, lock.size() - 1) + ")");
  }
  // Nor may one that logs elsewhere save in the same place.
  const Result third = other.run("b", {"checkpoint.directory=" + folder_.run_folder("a") + "/checkpoints"});
  expect_refused(third, "checkpoint.directory: ");
  ::kill(first, SIGTERM);
  EXPECT_EQ(folder_.wait(first).code, 130);
  const std::vector<double> steps = folder_.column("a", "step");
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<double>(i + 1));
  EXPECT_FALSE(fs::exists(folder_.run_folder("a") + "/run.lock"));
}

TEST_F(RunFolders, TheLockOfAKilledRunIsRecognised) {
  const pid_t first = folder_.start("a", {"training.train_steps=1000000", "checkpoint.save_every=1"});
  wait_for_steps();
  ::kill(first, SIGKILL);
  folder_.wait(first);
  ASSERT_TRUE(fs::exists(folder_.run_folder("a") + "/run.lock"));
  const Result second = folder_.run("a", {"checkpoint.resume=auto", "training.train_steps=1"});
  EXPECT_EQ(second.code, 0) << second.error;
  const int64_t more = static_cast<int64_t>(folder_.csv("a").size()) + 5;
  const Result third =
      folder_.run("a", {"checkpoint.resume=auto", "training.train_steps=" + std::to_string(more)});
  EXPECT_EQ(third.code, 0) << third.error;
  EXPECT_EQ(static_cast<int64_t>(folder_.csv("a").size()), more);
  EXPECT_FALSE(fs::exists(folder_.run_folder("a") + "/run.lock"));
}

TEST_F(RunFolders, TheLockGoesWithItsHolderAndCanBeTakenAgain) {
  fs::create_directories(folder_.run_folder("x"));
  for (int i = 0; i < 2; ++i) {
    const train::FolderLock lock("logging.directory", folder_.run_folder("x"));
    EXPECT_THROW(train::FolderLock("logging.directory", folder_.run_folder("x"), 0), UserError);
  }
}

TEST_F(RunFolders, TheSameCommandAgainDestroysNothing) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string csv = read_file(folder_.run_folder("a") + "/loss.csv");
  const std::string weights = folder_.checkpoint_bytes("a", 2);
  expect_refused(folder_.run("a", {"checkpoint.keep=1"}), "go on from it with --set checkpoint.resume=auto");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/loss.csv"), csv);
  EXPECT_EQ(folder_.checkpoint_bytes("a", 2), weights);
  // Logs alone, or checkpoints alone, are a run as well.
  fs::rename(folder_.run_folder("a") + "/checkpoints", folder_ / "aside");
  expect_refused(folder_.run("a"), "loss.csv up to step 6");
  fs::rename(folder_ / "aside", folder_.run_folder("a") + "/checkpoints");
  for (const char* name : {"/loss.csv", "/metrics.jsonl"}) fs::remove(folder_.run_folder("a") + name);
  expect_refused(folder_.run("a"), "step_00000006): go on from it");
}

// Another folder of logs does not help where the checkpoints are another run's.
TEST_F(RunFolders, NamesTheFolderOfCheckpointsThatIsTaken) {
  ASSERT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string checkpoints = folder_.run_folder("a") + "/checkpoints";
  const Result other = folder_.run("b", {"checkpoint.directory=" + checkpoints});
  expect_refused(other, checkpoints + ": holds an earlier run (");
  TE_EXPECT_CONTAINS(other.error, "or choose another checkpoint.directory");
}

TEST_F(RunFolders, OverwriteRemovesTheEarlierRun) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2", "training.train_steps=8"}).code, 0);
  const Result again = run_with("--overwrite", "a");
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "--overwrite: removed an earlier run from " + folder_.run_folder("a") +
                                    ": its logs of 8 steps and 4 checkpoints");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  EXPECT_FALSE(fs::exists(folder_.checkpoint("a", 8)));
  EXPECT_FALSE(fs::exists(folder_.checkpoint("a", 4)));
  EXPECT_EQ(run_with("--overwrite", "new").code, 0);
  expect_refused(run_with("--overwrite --set checkpoint.resume=auto", "a"), "--overwrite starts anew");
}

// A run is started with another one's saved config: its checkpoints follow its own logging.directory.
TEST_F(RunFolders, TheConfigThatARunLeavesBehindDoesNotLeadToItsCheckpoints) {
  ASSERT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string weights = folder_.checkpoint_bytes("a", 6);
  const auto start_b = [&](const std::string& options) {
    return folder_.run_raw("--config " + folder_.run_folder("a") +
                           "/effective_config.yaml --set logging.directory=" + folder_.run_folder("b") +
                           options);
  };
  // Neither continued
  const Result resumed = start_b(" --set checkpoint.resume=auto --set training.train_steps=8");
  EXPECT_EQ(resumed.code, 0) << resumed.error;
  TE_EXPECT_CONTAINS(resumed.out,
                     folder_.run_folder("b") + "/checkpoints holds no checkpoint; the run starts at step 1");
  EXPECT_EQ(folder_.csv("b").size(), 8u);
  // nor removed.
  EXPECT_EQ(start_b(" --overwrite").code, 0);
  for (const int64_t step : {2, 4, 6}) EXPECT_TRUE(fs::exists(folder_.checkpoint("a", step))) << step;
  EXPECT_FALSE(fs::exists(folder_.checkpoint("b", 8)));
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), weights);
  // As it is, the file is that run.
  const Result again = folder_.run_raw("--config " + folder_.run_folder("a") +
                                       "/effective_config.yaml --set checkpoint.resume=auto");
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "nothing to do: the checkpoint is at step 6 of 6");
}

// checkpoint.directory is given, and holds another run's checkpoints.
TEST_F(RunFolders, AnotherRunsCheckpointsAreNotRemovedAndNotContinuedInSilence) {
  const std::string shared = folder_ / "shared", to_shared = "checkpoint.directory=" + shared;
  ASSERT_EQ(folder_.run("a", {to_shared, "training.train_steps=4"}).code, 0);
  const Result overwrites = run_with("--overwrite --set " + to_shared, "b");
  expect_refused(overwrites, "checkpoint.directory: " + shared +
                                 ": holds checkpoints of the run that logs to " + folder_.run_folder("a"));
  EXPECT_TRUE(fs::exists(shared + "/step_00000004"));
  const Result continues = folder_.run("b", {to_shared, "checkpoint.resume=auto"});
  EXPECT_EQ(continues.code, 0) << continues.error;
  TE_EXPECT_CONTAINS(continues.out, "continues the run that logs to " + folder_.run_folder("a"));
  // The run's own go, and the message says where they were.
  const Result own = run_with("--overwrite --set " + to_shared, "c");
  EXPECT_EQ(own.code, 2);
  fs::remove_all(shared);
  ASSERT_EQ(folder_.run("c", {to_shared}).code, 0);
  const Result again = run_with("--overwrite --set " + to_shared, "c");
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "its logs of 6 steps and 1 checkpoints of " + shared);
}

// A run that was killed before its first checkpoint, and started again by a batch system.
TEST_F(RunFolders, ResumingFromNothingSaysSoAndKeepsTheLog) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_last=false", "training.train_steps=4"}).code, 0);
  const std::string csv = read_file(folder_.run_folder("a") + "/loss.csv");
  const Result again = folder_.run("a", {"checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "checkpoints holds no checkpoint; the run starts at step 1");
  TE_EXPECT_CONTAINS(again.out, "up to step 4, is kept as loss.csv.1");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/loss.csv.1"), csv);
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

TEST_F(RunFolders, GoingBackNamesWhatWillBeLost) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const Result back =
      folder_.run("a", {"checkpoint.resume=" + folder_.checkpoint("a", 2), "checkpoint.keep=2"});
  EXPECT_EQ(back.code, 0) << back.error;
  TE_EXPECT_CONTAINS(back.out, "2 checkpoints are of later steps than 2, up to step_00000006");
  TE_EXPECT_CONTAINS(back.out, "loss.csv: 4 lines after step 2 are cut off");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

TEST_F(RunFolders, ADamagedNewestCheckpointGivesWayToTheOneBeforeIt) {
  EXPECT_EQ(folder_.run("whole").code, 0);
  const std::vector<std::string> go_on = {"checkpoint.resume=auto", "checkpoint.save_every=2"};
  const auto damaged = [&](const std::function<void()>& how) {
    EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
    how();
    Result result = folder_.run("a", {"checkpoint.resume=auto", "checkpoint.resume_fallback=false"});
    expect_refused(result, "step_00000004");
    result = folder_.run("a", go_on);
    EXPECT_EQ(result.code, 0) << result.error;
    TE_EXPECT_CONTAINS(result.out, "step_00000004 is damaged: going on with step_00000002");
    TE_EXPECT_CONTAINS(result.out, "resumed from " + folder_.checkpoint("a", 2) + " after step 2");
    EXPECT_EQ(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("whole", 6));
    EXPECT_EQ(folder_.csv("a").size(), 6u);
    fs::remove_all(folder_.run_folder("a"));
  };
  damaged([&] { damage(4); });
  damaged([&] { fs::remove(folder_.checkpoint("a", 4) + "/optimizer.safetensors"); });
  damaged([&] { fs::resize_file(folder_.checkpoint("a", 4) + "/model.safetensors", 3000); });
  damaged([&] { write_file(folder_.checkpoint("a", 4) + "/manifest.json", "{"); });
  // Both: the first one's message stays the reason.
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
  damage(4);
  damage(2);
  const Result none = folder_.run("a", go_on);
  expect_refused(none, "checksum of bytes");
  // A checkpoint that is whole, but of another model, is never passed over.
  EXPECT_EQ(folder_.run("b", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
  expect_refused(folder_.run("b", {"checkpoint.resume=auto", "model.num_layers=3"}), "model.num_layers");
}

TEST_F(RunFolders, APipeAsManifestDoesNotHang) {
  fs::create_directories(folder_ / "pipe");
  ASSERT_EQ(::mkfifo((folder_ / "pipe/manifest.json").c_str(), 0600), 0);
  expect_refused(folder_.run("a", {"checkpoint.resume=" + (folder_ / "pipe")}),
                 "is a pipe, not a regular file");
}

// A signal whose handler only asks for the end does not end open(2) of a pipe: a run would never stop.
TEST_F(RunFolders, APipeInPlaceOfAFileDoesNotHang) {
  const Overrides save = {"checkpoint.save_every=2", "training.train_steps=2"};
  const Overrides go_on = {"checkpoint.resume=auto", "training.train_steps=4"};
  ASSERT_EQ(folder_.run("a", save).code, 0);
  const std::string folder = folder_.run_folder("a");
  const auto replace = [](const std::string& path) {
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  };
  const auto run = [&](const Overrides& overrides) { return folder_.run("a", overrides); };
  replace(folder + "/checkpoints/latest");
  replace(folder + "/run.json");
  const Result result = run(go_on);
  ASSERT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out,
                     "latest: cannot be read: is a pipe, not a regular file; going on with step_00000002");
  for (const char* log : {"/loss.csv", "/metrics.jsonl"}) {
    replace(folder + log);
    expect_refused(run(go_on + Overrides{"training.train_steps=6"}), "is a pipe, not a regular file");
    fs::remove(folder + log);
  }
  replace(folder + "/run.lock");
  expect_refused(run(go_on), "is a pipe, not a regular file");
}

}  // namespace
}  // namespace te
