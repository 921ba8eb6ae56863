// Saving: folders, `latest`, which checkpoints are kept, and the state after failures.
#include "checkpoint/saver.h"

#include <sys/stat.h>

#include <thread>

#include "checkpoint_testing.h"
#include "parallel/watchdog.h"
#include "testing/eventually.h"

namespace te {
namespace {

namespace fs = std::filesystem;

using checkpoint::Progress;
using checkpoint::Saver;
using testing::entries;
using testing::fake_options;
using testing::fake_ranks;
using testing::FakeRank;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

Progress at_step(int64_t step) {
  return {step, 10 * step, step};
}

class Saving : public ::testing::Test {
 protected:
  Saving() { rank_.fill(); }
  std::unique_ptr<Saver> saver(bool background, int64_t keep = 0) {
    checkpoint::SaverOptions options = fake_options(folder_.path());
    options.background = background;
    options.keep = keep;
    return std::make_unique<Saver>(rank_.context(), options, rank_.state());
  }
  fs::path step(int64_t number) const { return folder_ / checkpoint::step_name(number); }
  std::string latest() const { return read_bytes(folder_ / "latest"); }

  TemporaryFolder folder_;
  FakeRank rank_{{}, 0};
};

// By the memory before any rank allocates, which is the same number for all.
TEST_F(Saving, BackgroundNeedsMemoryForTheCopiesOfAllRanksOfTheHost) {
  const auto background = [&](int ranks, int64_t free_host_bytes) {
    return Saver(rank_.context(), fake_options(folder_.path()), rank_.state(),
                 {.host_ranks = ranks, .free_host_bytes = free_host_bytes})
        .background();
  };
  EXPECT_TRUE(background(1, int64_t{1} << 30));
  EXPECT_FALSE(background(1'000'000, int64_t{1} << 30));
  EXPECT_FALSE(background(1, 0));
}

TEST_F(Saving, ForegroundAndBackgroundWriteTheSameBytes) {
  auto foreground = saver(false), background = saver(true);
  foreground->save(at_step(1), {});
  const auto saved = foreground->poll();
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(saved->folder, step(1));
  EXPECT_FALSE(foreground->poll().has_value());
  fs::rename(step(1), folder_ / "a");
  background->save(at_step(1), {});
  // The state may change as soon as save() has returned.
  rank_.poison();
  ASSERT_TRUE(background->finish().has_value());
  EXPECT_FALSE(background->finish().has_value());
  for (const std::string& name : entries(folder_ / "a"))
    EXPECT_EQ(read_bytes(folder_ / "a" / name), read_bytes(step(1) / name)) << name;
  EXPECT_EQ(entries(step(1)), (std::vector<std::string>{"fp8.safetensors", "manifest.json",
                                                        "model.safetensors", "optimizer.safetensors"}));
  EXPECT_EQ(latest(), "step_00000001\n");
}

TEST_F(Saving, PollReportsAFinishedSave) {
  auto background = saver(true);
  background->save(at_step(1), {});
  std::optional<checkpoint::Saved> saved;
  ASSERT_TRUE(testing::eventually([&] { return (saved = background->poll()).has_value(); }));
  EXPECT_EQ(saved->folder, step(1));
  EXPECT_GT(saved->bytes, 0);
  EXPECT_LE(saved->stalled_seconds, saved->seconds);
}

TEST_F(Saving, KeepDeletesTheOldestButNotTheVerifiedOneOrForeignFolders) {
  auto saving = saver(true, 2);
  fs::create_directories(folder_ / "step_00000000");  // not a checkpoint: it has no manifest
  fs::create_directories(folder_ / "step_1/manifest.json");
  fs::create_directories(folder_ / "best");
  write_bytes(folder_ / "best/manifest.json", "{}");
  for (int64_t number = 1; number <= 5; ++number) {
    saving->save(at_step(number), number > 1 ? step(2) : fs::path());
    saving->finish();
    // A copied run folder has new times in any order.
    fs::last_write_time(step(number) / "manifest.json",
                        fs::file_time_type::clock::now() - std::chrono::hours(number));
  }
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"best", "latest", "step_00000000",
                                                               "step_00000002", "step_00000005", "step_1"}));
  // A run that rolls back to step 2 deletes the later checkpoint, not the one that it saves now.
  saving->save(at_step(3), step(2));
  saving->finish();
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"best", "latest", "step_00000000",
                                                               "step_00000002", "step_00000003", "step_1"}));
  EXPECT_EQ(latest(), "step_00000003\n");
}

TEST_F(Saving, RemovesOnlyTheTemporaryFoldersOfKilledRuns) {
  for (const char* name :
       {"step_00000004.tmp", "step_00000005.old.tmp", "step_4.tmp", "other.tmp", "step_00000006"})
    fs::create_directories(folder_ / name);
  write_bytes(folder_ / "step_00000004.tmp/model.safetensors", "half");
  write_bytes(folder_ / "step_00000007.tmp", "a file");
  fs::create_directories(folder_ / "elsewhere");
  write_bytes(folder_ / "elsewhere/file", "x");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "step_00000008.tmp");
  saver(true);
  EXPECT_EQ(entries(folder_.path()),
            (std::vector<std::string>{"elsewhere", "other.tmp", "step_00000006", "step_00000007.tmp",
                                      "step_00000008.tmp", "step_4.tmp"}));
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere/file"));
}

TEST_F(Saving, RunFolderResolvesToItsCheckpoints) {
  const fs::path run = folder_ / "run";
  fs::create_directories(run / "checkpoints");  // any program's folder may have one of this name
  EXPECT_FALSE(checkpoint::is_checkpoint_path(run));
  TE_EXPECT_REFUSED("not found; a checkpoint is a folder with manifest.json", checkpoint::resolve(run));
  write_bytes(run / "run.json", "{}");
  EXPECT_TRUE(checkpoint::is_checkpoint_path(run));
  TE_EXPECT_REFUSED("is a run folder without checkpoints", checkpoint::resolve(run));
  auto saving = saver(false);
  for (const int64_t number : {1, 2}) saving->save(at_step(number), {});
  for (const auto& name : {"latest", "step_00000001", "step_00000002"}) {
    fs::rename(folder_ / name, run / "checkpoints" / name);
  }
  EXPECT_EQ(checkpoint::resolve(run), run / "checkpoints/step_00000002");
  EXPECT_EQ(checkpoint::resolve(run / "checkpoints"), run / "checkpoints/step_00000002");
  EXPECT_EQ(checkpoint::resolve(run / "checkpoints/step_00000001"), run / "checkpoints/step_00000001");
  fs::remove(run / "run.json");  // the checkpoints suffice
  EXPECT_TRUE(checkpoint::is_checkpoint_path(run));
  EXPECT_EQ(checkpoint::resolve(run), run / "checkpoints/step_00000002");
  // Checkpoints in the folder itself have priority.
  fs::copy(run / "checkpoints/step_00000001", run / "step_00000001", fs::copy_options::recursive);
  EXPECT_EQ(checkpoint::resolve(run), run / "step_00000001");
}

// Runs compare a checkpoint's directory and name with their own.
TEST_F(Saving, ResolvesToTheNameInTheDirectory) {
  auto saving = saver(false);
  for (const int64_t number : {1, 2}) saving->save(at_step(number), {});
  const std::string name = step(1).filename().string();
  for (const char* end : {"", "/", "//", "/.", "/../step_00000001/"})
    EXPECT_EQ(checkpoint::resolve(step(1).string() + end).filename(), name) << end;
  EXPECT_EQ(checkpoint::resolve(step(1).string() + "/"), step(1));
  const fs::path other = folder_ / "other", link = other / "good";
  fs::create_directories(other);
  fs::create_directory_symlink(step(1), link);
  EXPECT_EQ(checkpoint::resolve(link), fs::canonical(step(1)));
  fs::create_directory_symlink(step(1), other / name);
  EXPECT_EQ(checkpoint::in_directory(folder_.path(), checkpoint::resolve(other / name)), step(1));
  EXPECT_EQ(checkpoint::in_directory(other, step(2)), step(2));
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  EXPECT_EQ(checkpoint::resolve(name), fs::path(".") / name);
  EXPECT_EQ(checkpoint::resolve("latest"), fs::path(".") / step(2).filename());
  fs::current_path(before);
}

TEST_F(Saving, FindsTheNewestCheckpointWithoutLatest) {
  EXPECT_FALSE(checkpoint::find_latest(folder_.path()).has_value());
  EXPECT_FALSE(checkpoint::find_latest(folder_ / "nowhere").has_value());
  auto saving = saver(false);
  for (const int64_t number : {1, 2, 3}) saving->save(at_step(number), {});
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(3));
  write_bytes(folder_ / "latest", "step_00000002\n");  // a user's choice
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(2));
  checkpoint::make_latest(step(1));
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(1));
  EXPECT_FALSE(checkpoint::checkpoint_before(step(1)).has_value());
  EXPECT_EQ(checkpoint::checkpoint_before(step(3)), step(2));
  EXPECT_EQ(checkpoint::list_checkpoints(folder_.path()).back(), (std::pair<int64_t, fs::path>{3, step(3)}));
  for (const char* text : {"step_00000009\n", "", "../x\n", "\n"}) {
    write_bytes(folder_ / "latest", text);
    EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(3)) << text;
  }
  fs::remove(folder_ / "latest");
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(3));
  write_bytes(step(3) / "manifest.json", "{");  // damaged, so the previous one is used
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(2));
  fs::remove_all(step(1));
  fs::remove_all(step(2));
  // A new run would replace the damaged checkpoint.
  TE_EXPECT_REFUSED("has no complete checkpoint: ", checkpoint::find_latest(folder_.path()));
  write_bytes(folder_ / "latest", "step_00000002\n");
  TE_EXPECT_REFUSED("names 'step_00000002', which is not a checkpoint",
                    checkpoint::find_latest(folder_.path()));
}

// Imported weights: no run has saved them, so none may delete them.
TEST_F(Saving, KeepDoesNotDeleteStepZero) {
  auto saving = saver(false, 1);
  for (const int64_t number : {0, 1, 2}) saving->save(at_step(number), {});
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000000", "step_00000002"}));
}

// A kill between the two renames that replace a step where names cannot be exchanged leaves only the old folder's name.
TEST_F(Saving, AReplacedStepComesBackIfTheNewOneIsMissing) {
  saver(false)->save(at_step(2), {});
  fs::rename(step(2), folder_ / "step_00000002.old.tmp");
  fs::create_directories(folder_ / "step_00000002.tmp");
  checkpoint::remove_leftovers(folder_.path());
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000002"}));
  fs::copy(step(2), folder_ / "step_00000002.old.tmp");
  checkpoint::remove_leftovers(folder_.path());
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000002"}));
}

// A step on another disk.
TEST_F(Saving, LinksToStepFoldersAreReadButNotPruned) {
  auto saving = saver(false);
  for (const int64_t number : {1, 2}) saving->save(at_step(number), {});
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::create_directories(elsewhere);
  for (const int64_t number : {1, 2}) {
    const fs::path target = elsewhere / step(number).filename();
    fs::rename(step(number), target);
    fs::create_directory_symlink(target, step(number));
  }
  EXPECT_EQ(checkpoint::find_latest(folder_.path()), step(2));
  EXPECT_EQ(checkpoint::resolve(folder_ / "latest"), step(2));
  EXPECT_EQ(checkpoint::checkpoint_before(step(2)), step(1));
  saving = saver(false, 1);
  for (const int64_t number : {3, 4}) saving->save(at_step(number), {});
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"elsewhere", "latest", "step_00000001",
                                                               "step_00000002", "step_00000004"}));
  checkpoint::remove_checkpoint(step(2));
  EXPECT_FALSE(fs::exists(step(2)));
  checkpoint::Reader(elsewhere / "step_00000002").verify_all();
}

TEST_F(Saving, AFileIsNotACheckpoint) {
  saver(false)->save(at_step(1), {});
  for (const char* name : {"manifest.json", "model.safetensors"}) {
    const std::string file = (step(1) / name).string();
    TE_EXPECT_REFUSED(file + ": is a file, not a checkpoint; give the folder that has it",
                      checkpoint::resolve(file));
  }
}

// --- failures ----------------------------------------------------------------------------------------------

class FailingSaves : public Saving, public ::testing::WithParamInterface<bool> {
 protected:
  /// Expects that the save of step 2 fails, in the foreground or background, and that step 1 is intact.
  void expect_failure(Saver& saving, const std::string& part) {
    TE_EXPECT_REFUSED(part, (saving.save(at_step(2), {}), saving.finish()));
    EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000001"}));
    EXPECT_EQ(latest(), "step_00000001\n");
    checkpoint::Reader(step(1)).verify_all();
  }
};

TEST_P(FailingSaves, RefusesNonFiniteValues) {
  auto saving = saver(GetParam());
  saving->save(at_step(1), {});
  saving->finish();
  for (const float value : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    for (const int which : {0, 1, 2}) {
      float* victim = nullptr;
      int seen = 0;
      rank_.for_each([&](const std::string&, int64_t, float& element) {
        if (seen++ == 3 * 1000 + which) victim = &element;
      });
      const float before = *victim;
      *victim = value;
      expect_failure(*saving, "is not finite after this step");
      *victim = before;
    }
  }
  saving->save(at_step(2), {});
  EXPECT_TRUE(saving->finish().has_value());
  EXPECT_EQ(latest(), "step_00000002\n");
}

TEST_P(FailingSaves, FolderDisappears) {
  auto saving = saver(GetParam());
  saving->save(at_step(1), {});
  saving->finish();
  const fs::path aside = folder_.path().string() + ".aside";
  fs::rename(folder_.path(), aside);
  write_bytes(folder_.path(), "a file in place of the folder");
  TE_EXPECT_REFUSED("checkpoint.directory: ", (saving->save(at_step(2), {}), saving->finish()));
  fs::remove(folder_.path());
  fs::rename(aside, folder_.path());
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000001"}));
  checkpoint::Reader(step(1)).verify_all();
}

// A pipe without a reader simulates a disk that does not respond.
TEST_P(FailingSaves, HangingDiskEndsTheRun) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto hang = [this] {
    parallel::Watchdog::set_timeout(0.5);
    checkpoint::SaverOptions options = fake_options(folder_.path());
    options.background = GetParam();
    checkpoint::Job job;
    job.barrier = [this] {
      ASSERT_EQ(::mkfifo((folder_ / "step_00000002.tmp/model.safetensors.tmp").c_str(), 0600), 0);
    };
    Saver saving(rank_.context(), options, rank_.state(), job);
    saving.save(at_step(2), {});
    saving.finish();
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(1),
              "watchdog: rank 0: has waited .* s for the disk to write step_00000002");
}

INSTANTIATE_TEST_SUITE_P(Threads, FailingSaves, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "background" : "foreground"; });

TEST_F(Saving, NextCallReportsABackgroundError) {
  rank_.poison();
  auto saving = saver(true);
  saving->save(at_step(1), {});
  rank_.fill();
  TE_EXPECT_REFUSED("is not finite", saving->save(at_step(2), {}));
  saving->save(at_step(3), {});  // the error is reported only once
  EXPECT_TRUE(saving->finish().has_value());
  EXPECT_EQ(entries(folder_.path()), (std::vector<std::string>{"latest", "step_00000003"}));
}

// --- several ranks -----------------------------------------------------------------------------------------

TEST(SavingTogether, FailureOfOneRankFailsTheSave) {
  TemporaryFolder folder;
  const testing::Layout layout{.tensor = 2, .pipeline = 2};
  auto ranks = fake_ranks(layout, true);
  testing::save_all(ranks, fake_options(folder.path()), {1, 1, 1});
  ranks[2]->poison();
  std::vector<std::unique_ptr<Saver>> savers;
  for (auto& rank : ranks)
    savers.push_back(
        std::make_unique<Saver>(rank->context(), fake_options(folder.path()), rank->state(), rank->job()));
  for (auto& saving : savers) saving->save({2, 2, 2}, {});
  TE_EXPECT_REFUSED("rank 2: ", savers[0]->finish());
  TE_EXPECT_REFUSED("is not finite", savers[2]->finish());
  savers.clear();
  EXPECT_EQ(entries(folder.path()), (std::vector<std::string>{"latest", "step_00000001"}));
  EXPECT_EQ(read_bytes(folder / "latest"), "step_00000001\n");
  checkpoint::Reader(folder.path()).verify_all();
}

TEST(SavingTogether, ErrorNamesTheMissingRank) {
  TemporaryFolder folder;
  auto ranks = fake_ranks({.tensor = 2}, true);
  checkpoint::Job job = ranks[0]->job();
  job.timeout_seconds = 1;
  Saver alone(ranks[0]->context(), fake_options(folder.path()), ranks[0]->state(), job);
  alone.save({1, 1, 1}, {});
  TE_EXPECT_REFUSED("rank 1 has not finished its files within 1 s (parallel.timeout_seconds)",
                    alone.finish());
  EXPECT_TRUE(entries(folder.path()).empty());
}

}  // namespace
}  // namespace te
