// The folders of a run: two runs in one folder, the same command again, resuming from an older checkpoint, and a
// damaged newest one.
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>

#include "te_train_testing.h"
#include "testing/eventually.h"
#include "testing/unprivileged.h"
#include "train/folder_lock.h"
#include "train/run_folder.h"

namespace te {
namespace {

namespace fs = std::filesystem;

using testing::operator+;
using testing::eventually;
using testing::expect_refused;
using testing::Overrides;
using testing::operator+;
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

TEST_F(RunFolders, SecondRunInTheFolderIsRefused) {
  const pid_t first = folder_.start("a", {"training.train_steps=1000000"});
  wait_for_steps();
  TrainFolder other;
  const std::string lock = read_file(folder_.run_folder("a") + "/run.lock");
  TE_EXPECT_CONTAINS(lock, " pid " + std::to_string(first) + " since ");
  for (const char* resume : {"never", "auto"}) {
    const Result second = other.run_raw("--config " + (other / "base.yaml") + " --set logging.directory=" +
                                        folder_.run_folder("a") + " --set checkpoint.resume=" + resume);
    expect_refused(second, "another run writes there (" + lock.substr(0, lock.size() - 1) + ")");
  }
  // A run that logs elsewhere must not save in the same place either.
  const Result third = other.run("b", {"checkpoint.directory=" + folder_.run_folder("a") + "/checkpoints"});
  expect_refused(third, "checkpoint.directory: ");
  ::kill(first, SIGTERM);
  EXPECT_EQ(folder_.wait(first).code, 130);
  const std::vector<double> steps = folder_.column("a", "step");
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<double>(i + 1));
  EXPECT_FALSE(fs::exists(folder_.run_folder("a") + "/run.lock"));
}

TEST_F(RunFolders, LockOfAKilledRunIsReplaced) {
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

TEST_F(RunFolders, LockIsReleasedWithItsHolder) {
  fs::create_directories(folder_.run_folder("x"));
  for (int i = 0; i < 2; ++i) {
    const train::FolderLock lock("logging.directory", folder_.run_folder("x"));
    EXPECT_THROW(train::FolderLock("logging.directory", folder_.run_folder("x"), 0), UserError);
  }
}

TEST_F(RunFolders, SameCommandAgainOverwritesNothing) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string csv = read_file(folder_.run_folder("a") + "/loss.csv");
  const std::string weights = folder_.checkpoint_bytes("a", 2);
  expect_refused(folder_.run("a", {"checkpoint.keep=1"}), "resume it with --set checkpoint.resume=auto");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/loss.csv"), csv);
  EXPECT_EQ(folder_.checkpoint_bytes("a", 2), weights);
  // Only logs, or only checkpoints, count as a run, too.
  fs::rename(folder_.run_folder("a") + "/checkpoints", folder_ / "aside");
  expect_refused(folder_.run("a"), "loss.csv up to step 6");
  fs::rename(folder_ / "aside", folder_.run_folder("a") + "/checkpoints");
  for (const char* name : {"/loss.csv", "/metrics.jsonl"}) fs::remove(folder_.run_folder("a") + name);
  expect_refused(folder_.run("a"), "step_00000006): resume it");
}

// Another log folder does not help if the checkpoints belong to another run.
TEST_F(RunFolders, NamesTheCheckpointFolderInUse) {
  ASSERT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string checkpoints = folder_.run_folder("a") + "/checkpoints";
  const Result other = folder_.run("b", {"checkpoint.directory=" + checkpoints});
  expect_refused(other,
                 checkpoints + ": holds checkpoints of the run that logs to " + folder_.run_folder("a"));
  TE_EXPECT_CONTAINS(other.error, "choose another checkpoint.directory");
  EXPECT_EQ(other.error.find("--overwrite"), std::string::npos) << other.error;  // it would be refused
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
  expect_refused(run_with("--overwrite --set checkpoint.resume=auto", "a"), "--overwrite starts at step 1");
}

TEST_F(RunFolders, OverwriteRemovesNothingIfACheckpointIsProtected) {
  ASSERT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const fs::path run = folder_.run_folder("a"), saved = folder_.checkpoint("a", 4);
  const train::RunFolder earlier({.logs = run, .checkpoints = run / "checkpoints"});
  for (const auto& path : {fs::path(folder_ / ""), run, run / "checkpoints"})
    fs::permissions(path, fs::perms::all);
  for (const int64_t step : {2, 6}) fs::permissions(folder_.checkpoint("a", step), fs::perms::all);
  fs::permissions(saved, fs::perms::all & ~fs::perms::group_write & ~fs::perms::others_write);
  {
    const testing::Unprivileged user;
    try {
      earlier.remove_earlier_run({});
      ADD_FAILURE() << "removed";
    } catch (const UserError& error) {
      TE_EXPECT_CONTAINS(error.what(),
                         "step_00000004: cannot be removed: it is write-protected; nothing was removed");
    }
  }
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  for (const int64_t step : {2, 4, 6}) EXPECT_TRUE(fs::exists(folder_.checkpoint("a", step)));
}

// A run starts with the saved config of another one: its checkpoints go to its own logging.directory.
TEST_F(RunFolders, SavedConfigDoesNotLeadToItsCheckpoints) {
  ASSERT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string weights = folder_.checkpoint_bytes("a", 6);
  const auto start_b = [&](const std::string& options) {
    return folder_.run_raw("--config " + folder_.run_folder("a") +
                           "/effective_config.yaml --set logging.directory=" + folder_.run_folder("b") +
                           options);
  };
  // They are neither resumed
  const Result resumed = start_b(" --set checkpoint.resume=auto --set training.train_steps=8");
  EXPECT_EQ(resumed.code, 0) << resumed.error;
  TE_EXPECT_CONTAINS(
      resumed.out, "no checkpoint in " + folder_.run_folder("b") + "/checkpoints; the run starts at step 1");
  EXPECT_EQ(folder_.csv("b").size(), 8u);
  // nor removed.
  EXPECT_EQ(start_b(" --overwrite").code, 0);
  for (const int64_t step : {2, 4, 6}) EXPECT_TRUE(fs::exists(folder_.checkpoint("a", step))) << step;
  EXPECT_FALSE(fs::exists(folder_.checkpoint("b", 8)));
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), weights);
  // Without changes, the file is the config of that run.
  const Result again = folder_.run_raw("--config " + folder_.run_folder("a") +
                                       "/effective_config.yaml --set checkpoint.resume=auto");
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "nothing to do: the checkpoint is at step 6 of 6");
}

// checkpoint.directory is set explicitly, and has checkpoints of another run.
TEST_F(RunFolders, CheckpointsOfAnotherRunAreNotRemovedOrSilentlyResumed) {
  const std::string shared = folder_ / "shared", to_shared = "checkpoint.directory=" + shared;
  ASSERT_EQ(folder_.run("a", {to_shared, "training.train_steps=4"}).code, 0);
  const Result overwrites = run_with("--overwrite --set " + to_shared, "b");
  expect_refused(overwrites, "checkpoint.directory: " + shared +
                                 ": holds checkpoints of the run that logs to " + folder_.run_folder("a"));
  EXPECT_TRUE(fs::exists(shared + "/step_00000004"));
  const Result continues = folder_.run("b", {to_shared, "checkpoint.resume=auto"});
  EXPECT_EQ(continues.code, 0) << continues.error;
  TE_EXPECT_CONTAINS(continues.out, "continues the run that logs to " + folder_.run_folder("a"));
  // The run's own checkpoints are removed, and the message names their folder.
  const Result own = run_with("--overwrite --set " + to_shared, "c");
  EXPECT_EQ(own.code, 2);
  fs::remove_all(shared);
  ASSERT_EQ(folder_.run("c", {to_shared}).code, 0);
  const Result again = run_with("--overwrite --set " + to_shared, "c");
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "its logs of 6 steps and 1 checkpoints of " + shared);
}

// A run that was killed before its first checkpoint, and restarted by a batch system.
TEST_F(RunFolders, ResumingWithoutCheckpointKeepsTheLog) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_last=false", "training.train_steps=4"}).code, 0);
  const std::string csv = read_file(folder_.run_folder("a") + "/loss.csv");
  const Result again = folder_.run("a", {"checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "checkpoints; the run starts at step 1");
  TE_EXPECT_CONTAINS(again.out, "up to step 4, to loss.csv.1");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/loss.csv.1"), csv);
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

TEST_F(RunFolders, ResumingFromAnOlderCheckpointWarns) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const Result back =
      folder_.run("a", {"checkpoint.resume=" + folder_.checkpoint("a", 2), "checkpoint.keep=2"});
  EXPECT_EQ(back.code, 0) << back.error;
  TE_EXPECT_CONTAINS(back.out, "2 checkpoints after step 2, up to step_00000006");
  TE_EXPECT_CONTAINS(back.out, "loss.csv: removed 4 lines after step 2");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

// A run that is killed before its first save must not leave the checkpoints that it replaces as the latest ones.
TEST_F(RunFolders, ResumedCheckpointIsTheLatestOneAtOnce) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const pid_t child = folder_.start(
      "a", {"checkpoint.resume=" + folder_.checkpoint("a", 2) + "/", "training.train_steps=1000000"});
  EXPECT_TRUE(eventually([&] { return folder_.csv("a").size() > 8; }));
  ::kill(child, SIGKILL);
  folder_.wait(child);
  const Result again = folder_.run("a", {"checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "resumed from " + folder_.checkpoint("a", 2) + " after step 2");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

TEST_F(RunFolders, LostLogLinesAreReported) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2"}).code, 0);
  const std::string path = folder_.run_folder("a") + "/loss.csv", log = read_file(path);
  write_file(path, log.substr(0, log.find("\n4,") + 1));
  const Result result = folder_.run("a", {"checkpoint.resume=auto", "training.train_steps=7"});
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "loss.csv: ends at step 3, but the run resumes after step 6");
  EXPECT_EQ(folder_.run("b", {"logging.every=3", "training.train_steps=5"}).code, 0);
  const Result fewer = folder_.run("b", {"checkpoint.resume=auto", "training.train_steps=6"});
  EXPECT_EQ(fewer.out.find("are lost"), std::string::npos) << fewer.out;
}

TEST_F(RunFolders, RemovedFolderIsLockedAgainUnlessAnotherRunHasIt) {
  const std::string folder = folder_ / "locked";
  fs::create_directories(folder);
  train::FolderLock lock("logging.directory", folder);
  lock.check();
  fs::remove_all(folder);
  lock.check();
  EXPECT_TRUE(fs::exists(folder + "/run.lock"));
  fs::remove_all(folder);
  fs::create_directories(folder);
  {
    const train::FolderLock other("logging.directory", folder);
    TE_EXPECT_CONTAINS(testing::user_error_of([&] { lock.check(); }), "another run writes there");
  }
  lock.check();
  EXPECT_TRUE(fs::exists(folder + "/run.lock"));
}

TEST_F(RunFolders, DamagedNewestCheckpointFallsBackToThePreviousOne) {
  EXPECT_EQ(folder_.run("whole").code, 0);
  const std::vector<std::string> resume = {"checkpoint.resume=auto", "checkpoint.save_every=2"};
  const auto damaged = [&](const std::function<void()>& how) {
    EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
    how();
    Result result = folder_.run("a", {"checkpoint.resume=" + folder_.checkpoint("a", 4)});
    expect_refused(result, "step_00000004");
    result = folder_.run("a", resume);
    EXPECT_EQ(result.code, 0) << result.error;
    TE_EXPECT_CONTAINS(result.out, "step_00000004 is damaged: resuming from step_00000002");
    TE_EXPECT_CONTAINS(result.out, "resumed from " + folder_.checkpoint("a", 2) + " after step 2");
    EXPECT_EQ(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("whole", 6));
    EXPECT_EQ(folder_.csv("a").size(), 6u);
    fs::remove_all(folder_.run_folder("a"));
  };
  damaged([&] { damage(4); });
  damaged([&] { fs::remove(folder_.checkpoint("a", 4) + "/optimizer.safetensors"); });
  damaged([&] { fs::resize_file(folder_.checkpoint("a", 4) + "/model.safetensors", 3000); });
  damaged([&] { write_file(folder_.checkpoint("a", 4) + "/manifest.json", "{"); });
  // If both are damaged, the first one's message is reported.
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
  damage(4);
  damage(2);
  const Result none = folder_.run("a", resume);
  expect_refused(none, "checksum of bytes");
  // A complete checkpoint of another model is never skipped.
  EXPECT_EQ(folder_.run("b", {"checkpoint.save_every=2", "training.train_steps=4"}).code, 0);
  expect_refused(folder_.run("b", {"checkpoint.resume=auto", "model.num_layers=3"}), "model.num_layers");
}

TEST_F(RunFolders, PipeAsManifestDoesNotHang) {
  fs::create_directories(folder_ / "pipe");
  ASSERT_EQ(::mkfifo((folder_ / "pipe/manifest.json").c_str(), 0600), 0);
  expect_refused(folder_.run("a", {"checkpoint.resume=" + (folder_ / "pipe")}),
                 "is a pipe, not a regular file");
}

// Opening a pipe blocks even after a signal whose handler only sets a flag: the run would never stop.
TEST_F(RunFolders, PipeInsteadOfAFileDoesNotHang) {
  const Overrides save = {"checkpoint.save_every=2", "training.train_steps=2"};
  const Overrides resume = {"checkpoint.resume=auto", "training.train_steps=4"};
  ASSERT_EQ(folder_.run("a", save).code, 0);
  const std::string folder = folder_.run_folder("a");
  const auto replace = [](const std::string& path) {
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  };
  const auto run = [&](const Overrides& overrides) { return folder_.run("a", overrides); };
  replace(folder + "/checkpoints/latest");
  replace(folder + "/run.json");
  const Result result = run(resume);
  ASSERT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out,
                     "latest: cannot be read: is a pipe, not a regular file; using step_00000002");
  for (const char* log : {"/loss.csv", "/metrics.jsonl"}) {
    replace(folder + log);
    expect_refused(run(resume + Overrides{"training.train_steps=6"}), "is a pipe, not a regular file");
    fs::remove(folder + log);
  }
  replace(folder + "/run.lock");
  expect_refused(run(resume), "is a pipe, not a regular file");
}

// An earlier run in the same folder, for example before --overwrite, may have had another tokenizer.
TEST_F(RunFolders, TokenizerOfAnEarlierRunIsNotUsed) {
  const std::string missing = folder_ / "missing";
  const auto kept_in = [&](const std::string& run) {
    return fs::path(folder_.run_folder(run)) / "checkpoints/hugging_face";
  };
  const auto leave = [&](const std::string& run) {
    fs::create_directories(kept_in(run));
    fs::copy_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/precompiled.json",
                  kept_in(run) / "tokenizer.json", fs::copy_options::overwrite_existing);
  };
  const auto is_left = [&](const std::string& run, const Overrides& overrides) {
    leave(run);
    const Result result = folder_.run(run, overrides);
    EXPECT_EQ(result.code, 0) << result.error;
    return fs::exists(kept_in(run));
  };
  leave("a");
  expect_refused(folder_.run("a", {"data.tokenizer=" + missing}), "not a tokenizer file or folder");
  EXPECT_FALSE(is_left("a", {}));
  EXPECT_FALSE(is_left("b", {"data.tokenizer=bytes"}));
  // A run that resumes its own checkpoint keeps it, and it stands in for files that are missing.
  const Overrides more = {"checkpoint.resume=auto", "data.check=false"};
  EXPECT_TRUE(is_left("a", more + Overrides{"training.train_steps=7"}));
  EXPECT_TRUE(is_left("a", more + Overrides{"training.train_steps=8", "data.tokenizer=" + missing}));
}

}  // namespace
}  // namespace te
