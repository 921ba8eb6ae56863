// Runs that end early: a signal, divergence, a full disk. The last checkpoint is good in every case.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "te_train_testing.h"
#include "testing/eventually.h"

namespace te {
namespace {

using testing::operator+;
using testing::eventually;
using testing::Overrides;
using testing::read_file;
using testing::Result;
using testing::split;
using testing::TrainFolder;
using testing::write_file;

class Interruption : public ::testing::Test {
 protected:
  /// Sends a signal once the run has logged a few steps.
  Result run_until_signal(const std::vector<std::string>& overrides, int signal = SIGTERM) {
    const pid_t child = folder_.start("a", overrides);
    wait_for_lines(4);
    ::kill(child, signal);
    return folder_.wait(child);
  }
  /// Waits until loss.csv has this many lines.
  void wait_for_lines(int64_t lines) {
    const std::string csv = folder_.run_folder("a") + "/loss.csv";
    const bool there = eventually([&] {
      if (!std::filesystem::exists(csv)) return false;
      const std::string text = read_file(csv);
      return std::ranges::count(text, '\n') >= lines;
    });
    EXPECT_TRUE(there) << "no " << lines << " lines in loss.csv";
  }
  void wait_for_output(const std::string& part) {
    const std::string output = folder_ / "stdout";
    EXPECT_TRUE(eventually([&] {
      return std::filesystem::exists(output) && read_file(output).find(part) != std::string::npos;
    })) << "never printed: "
        << part;
  }
  void expect_all_finite(const std::string& checkpoint) {
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors"}) {
      const SafetensorsReader file(checkpoint + name);
      ASSERT_FALSE(file.tensors().empty());
      for (const SafetensorsTensor& tensor : file.tensors()) {
        std::vector<float> values(tensor.bytes / sizeof(float));
        std::memcpy(values.data(), tensor.data, tensor.bytes);
        for (float value : values)
          ASSERT_TRUE(std::isfinite(value)) << checkpoint << name << " " << tensor.name;
      }
    }
  }
  /// Rewrites the latest checkpoint with NaN in one weight of the output layer.
  void poison(const std::string& directory) {
    const checkpoint::Reader reader(directory);
    std::vector<checkpoint::TensorSpec> specs;
    for (const auto& tensor : reader.tensors()) specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    checkpoint::Writer writer(directory, reader.progress(), reader.config(), specs);
    for (const auto& tensor : reader.tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.numel()));
      reader.read_rows(tensor.name, 0, tensor.rows(), values.data());
      if (tensor.name == "output_layer.weight") values[7] = std::nanf("");
      writer.write(tensor.name, values.data(), tensor.bytes());
    }
    writer.finish();
  }
  std::string latest(const std::string& run) {
    return read_file(folder_.run_folder(run) + "/checkpoints/latest");
  }
  TrainFolder folder_;
};

TEST_F(Interruption, SignalFinishesTheStepAndSaves) {
  for (const char* save_last : {"checkpoint.save_last=true", "checkpoint.save_last=false"}) {
    const Result result = run_until_signal({"training.train_steps=1000000", save_last});
    EXPECT_EQ(result.code, 130) << result.error;
    EXPECT_EQ(result.error, "");
    const auto rows = folder_.csv("a");
    ASSERT_GE(rows.size(), 3u);
    const int64_t step = std::stoll(rows.back().at("step"));
    EXPECT_EQ(static_cast<int64_t>(rows.size()), step);
    TE_EXPECT_CONTAINS(result.out, "interrupted after step " + std::to_string(step));
    TE_EXPECT_CONTAINS(result.out, folder_.checkpoint("a", step));
    ASSERT_TRUE(std::filesystem::exists(folder_.checkpoint("a", step) + "/manifest.json"));

    const Result more = folder_.run(
        "a", {"training.train_steps=" + std::to_string(step + 2), "checkpoint.resume=auto", save_last});
    EXPECT_EQ(more.code, 0) << more.error;
    const std::vector<double> steps = folder_.column("a", "step");
    ASSERT_EQ(static_cast<int64_t>(steps.size()), step + 2);
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<double>(i + 1));
    std::filesystem::remove_all(folder_.run_folder("a"));
  }
}

TEST_F(Interruption, OtherSignalsSaveAsWell) {
  for (const int signal : {SIGINT, SIGHUP, SIGUSR2}) {
    const Result result = run_until_signal({"training.train_steps=1000000"}, signal);
    EXPECT_EQ(result.code, 130) << result.error;
    TE_EXPECT_CONTAINS(result.out, "finishing this step and saving a checkpoint");
    EXPECT_TRUE(std::filesystem::exists(folder_.run_folder("a") + "/checkpoints/latest")) << signal;
    EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a") + "/run.lock"));
    std::filesystem::remove_all(folder_.run_folder("a"));
  }
}

// Also in steps that are skipped: here, as their scaled gradients overflow.
TEST_F(Interruption, Sigusr1SavesAndContinues) {
  const testing::Overrides fp16 = {"precision.dtype=fp16", "precision.loss_scale=1152921504606846976",
                                   "training.max_nonfinite_steps=1000000"};
  for (const testing::Overrides& precision : {testing::Overrides(), fp16}) {
    testing::Overrides all = {"training.train_steps=1000000", "checkpoint.save_last=false",
                              "checkpoint.save_every=1000000"};
    all.insert(all.end(), precision.begin(), precision.end());
    const pid_t child = folder_.start("a", all);
    wait_for_lines(4);
    ::kill(child, SIGUSR1);
    wait_for_output("saved " + folder_.run_folder("a") + "/checkpoints/step_");
    const auto lines = static_cast<int64_t>(folder_.csv("a").size());
    wait_for_lines(lines + 5);
    ::kill(child, SIGTERM);
    EXPECT_EQ(folder_.wait(child).code, 130);
    std::filesystem::remove_all(folder_.run_folder("a"));
  }
}

TEST_F(Interruption, Sigusr1BeforeTheFirstStepSavesAfterIt) {
  const pid_t child = folder_.start("a", {"training.train_steps=1000000", "checkpoint.save_last=false"});
  wait_for_output("training data:");
  ::kill(child, SIGUSR1);
  wait_for_output("saved " + folder_.run_folder("a") + "/checkpoints/step_");
  ::kill(child, SIGTERM);
  EXPECT_EQ(folder_.wait(child).code, 130);
}

// One step takes minutes in this test.
TEST_F(Interruption, SecondCtrlCStopsAtOnce) {
  const pid_t child = folder_.start("a", {"training.global_batch_size=800000", "logging.fp8_stats_every=0"});
  wait_for_lines(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(child, SIGINT);
  wait_for_output("Ctrl-C again stops at once");
  const auto start = std::chrono::steady_clock::now();
  ::kill(child, SIGINT);
  const Result result = folder_.wait(child);
  EXPECT_EQ(result.code, 130);
  TE_EXPECT_CONTAINS(result.out, "the current step is lost");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(Interruption, ResumingAFinishedRunDoesNothing) {
  EXPECT_EQ(folder_.run("a").code, 0);
  const std::string before = folder_.checkpoint_bytes("a", 6);
  const Result again = folder_.run("a", {"checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 0) << again.error;
  TE_EXPECT_CONTAINS(again.out, "nothing to do");
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  EXPECT_EQ(folder_.checkpoint_bytes("a", 6), before);
}

// All losses are finite, but the run has diverged.
TEST_F(Interruption, FiniteDivergenceIsDetected) {
  const Result result = folder_.run("a", {"optimizer.lr=30", "optimizer.decay=constant",
                                          "training.train_steps=8", "checkpoint.save_every=1"});
  EXPECT_EQ(result.code, 3) << result.error;
  TE_EXPECT_CONTAINS(result.out, ": the run has probably diverged; ");
  TE_EXPECT_CONTAINS(result.out, "loss spike in step ");
  TE_EXPECT_CONTAINS(result.out, "is above 11.0982 (");
  TE_EXPECT_CONTAINS(result.out, " steps had a loss spike");
  TE_EXPECT_CONTAINS(read_file(folder_.run_folder("a") + "/run.json"), "\"end\": \"diverged\"");
  const Result again =
      folder_.run("a", {"optimizer.lr=30", "optimizer.decay=constant", "training.train_steps=8",
                        "checkpoint.save_every=1", "checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 3);
  TE_EXPECT_CONTAINS(again.out, "nothing to do");
  TE_EXPECT_CONTAINS(again.out, "the run has probably diverged");
  const Result silent =
      folder_.run("b", {"optimizer.lr=30", "optimizer.decay=constant", "training.loss_spikes=off"});
  EXPECT_EQ(silent.out.find("spike in step"), std::string::npos);
}

/// Training data with one document of tokens that occur nowhere else.
class Spikes : public Interruption {
 protected:
  Spikes() {
    testing::Documents documents;
    for (int i = 0; i < 100; ++i) documents.push_back(std::vector<int32_t>(150, 7));
    std::vector<int32_t>& odd = documents.emplace_back();
    for (int i = 0; i < 130; ++i) odd.push_back(100 + i * 37 % 150);
    testing::write_dataset(folder_ / "odd", documents);
  }
  Result run(const std::string& run, const std::string& policy, const testing::Overrides& more = {}) {
    return folder_.run(
        run, Overrides{"data.train=" + (folder_ / "odd"), "training.train_steps=230", "optimizer.lr=1e-2",
                       "optimizer.decay=constant", "checkpoint.save_every=10", "logging.fp8_stats_every=0",
                       "training.loss_spikes=" + policy} +
                 more);
  }
  /// Every step once, in order.
  void expect_steps(const std::string& run) {
    const std::vector<double> steps = folder_.column(run, "step");
    ASSERT_EQ(steps.size(), 230u);
    for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<double>(i + 1));
  }
};

TEST_F(Spikes, AreSkipped) {
  const Result warned = run("warn", "warn");
  EXPECT_EQ(warned.code, 0) << warned.error;
  TE_EXPECT_CONTAINS(warned.out, "training.loss_spikes: warn)");
  expect_steps("warn");
  for (const double skipped : folder_.column("warn", "skipped")) EXPECT_EQ(skipped, 0);

  const Result result = run("skip", "skip");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "LOSS SPIKE (1 so far, SKIPPED)");
  expect_steps("skip");
  double skipped = 0;
  for (const double one : folder_.column("skip", "skipped")) skipped += one;
  EXPECT_GE(skipped, 1);
  EXPECT_LE(skipped, 12);  // the odd document has 8 samples
  TE_EXPECT_CONTAINS(read_file(folder_.run_folder("skip") + "/metrics.jsonl"), "\"spikes_total\":1");
}

TEST_F(Spikes, AreRolledBackAndTheirDataSkipped) {
  const Result result = run("back", "rollback");
  EXPECT_EQ(result.code, 0) << result.error;
  TE_EXPECT_CONTAINS(result.out, "rolled back from step ");
  TE_EXPECT_CONTAINS(result.out, "the samples since then are skipped (1 rollbacks so far)");
  expect_steps("back");
  EXPECT_GT(folder_.column("back", "consumed_samples").back(), 4 * 230);
  // Resuming from a later checkpoint gives the same run.
  const std::string weights = folder_.checkpoint_bytes("back", 230);
  std::filesystem::remove_all(folder_.checkpoint("back", 230));
  write_file(folder_.run_folder("back") + "/checkpoints/latest", "step_00000220\n");
  const Result again = run("back", "rollback", {"checkpoint.resume=auto"});
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(folder_.checkpoint_bytes("back", 230), weights);
  expect_steps("back");
}

// A skipped step writes back unchanged state, and a rollback restores that of the checkpoint.
TEST_F(Spikes, AreTheSameWithOffload) {
  for (const std::string policy : {"skip", "rollback"}) {
    const testing::Overrides offload = {"optimizer.offload=state", "optimizer.exp_avg_dtype=bf16"};
    const Result plain = run(policy, policy, {offload[1]}),
                 offloaded = run(policy + "_offload", policy, offload);
    EXPECT_EQ(offloaded.code, 0) << offloaded.error;
    TE_EXPECT_CONTAINS(plain.out, policy == "skip" ? "SKIPPED" : "rolled back from step ");
    EXPECT_EQ(folder_.column(policy + "_offload", "loss"), folder_.column(policy, "loss"));
    EXPECT_EQ(folder_.checkpoint_bytes(policy + "_offload", 230), folder_.checkpoint_bytes(policy, 230));
  }
}

// A run that began without the moments of the checkpoint that it resumed has its own in later checkpoints.
TEST_F(Spikes, RollbackLoadsTheMomentsOfTheRunItself) {
  EXPECT_EQ(run("back", "rollback", {"training.train_steps=10"}).code, 0);
  const Result result =
      run("back", "rollback",
          {"checkpoint.resume=" + folder_.checkpoint("back", 10), "checkpoint.load_optimizer=false"});
  TE_EXPECT_CONTAINS(result.out, "rolled back from step ");
  const std::string note = "Adam moments are not loaded";
  const size_t first = result.out.find(note);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(result.out.find(note, first + 1), std::string::npos) << result.out;
}

// As spikes do: the last steps were not finite, but fewer than training.max_nonfinite_steps.
TEST_F(Interruption, LastStepsThatAreNotFiniteAreADivergence) {
  const Overrides overrides = {"optimizer.lr=1e30", "optimizer.clip_grad=0", "optimizer.decay=constant",
                               "training.train_steps=6", "training.max_nonfinite_steps=100"};
  const Result result = folder_.run("a", overrides);
  EXPECT_EQ(result.code, 3) << result.out;
  TE_EXPECT_CONTAINS(result.out, " steps were not finite: the run has probably diverged");
  EXPECT_EQ(folder_.run("a", overrides + Overrides{"checkpoint.resume=auto"}).code, 3);
}

// A learning rate that moves the weights to 1e30: the step is finite, and all later ones are not. Only earlier
// checkpoints may be kept or recommended.
TEST_F(Interruption, DivergenceStopsTheRunAndNamesTheLastGoodCheckpoint) {
  EXPECT_EQ(folder_.run("a", {"training.train_steps=3", "checkpoint.save_every=1"}).code, 0);
  const Result result =
      folder_.run("a", {"training.train_steps=50", "checkpoint.resume=auto", "checkpoint.save_every=1",
                        "optimizer.decay=constant", "optimizer.lr=1e30", "optimizer.clip_grad=0",
                        "training.max_nonfinite_steps=4"});
  EXPECT_EQ(result.code, 3) << result.out << result.error;
  EXPECT_EQ(result.error, "");
  TE_EXPECT_CONTAINS(result.out, "4 consecutive steps");
  const auto rows = folder_.csv("a");
  ASSERT_GT(rows.size(), 7u);
  int64_t last_finite = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool skipped = rows[i].at("skipped") == "1";
    EXPECT_EQ(skipped, i + 4 >= rows.size()) << i + 1;
    if (!skipped) last_finite = std::stoll(rows[i].at("step"));
  }
  // The checkpoint after the last finite step has the weights that led to the first non-finite one.
  TE_EXPECT_CONTAINS(result.out, "the last good checkpoint is " + folder_.checkpoint("a", last_finite - 1));
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("a", last_finite + 1)));
  for (int64_t step = 1; step <= last_finite; ++step) expect_all_finite(folder_.checkpoint("a", step));
}

// Weights that saving would refuse are refused when they are read.
TEST_F(Interruption, PoisonedCheckpointIsRefusedAndNotSaved) {
  EXPECT_EQ(folder_.run("a", {"training.train_steps=3"}).code, 0);
  poison(folder_.run_folder("a") + "/checkpoints");
  expect_refused(folder_.run("a", {"training.train_steps=50", "checkpoint.resume=auto",
                                   "checkpoint.save_every=1", "training.max_nonfinite_steps=5"}),
                 "output_layer.weight");
  EXPECT_EQ(folder_.csv("a").size(), 3u);
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("a", 4)));
  EXPECT_EQ(latest("a"), "step_00000003\n");
}

// A finite step whose update overflows FP32: 1e38 * 1e38 of weight decay.
TEST_F(Interruption, WeightsThatAreNotFiniteAreNotSaved) {
  EXPECT_EQ(folder_.run("a", {"training.train_steps=3"}).code, 0);
  const std::vector<std::string> overflow = {"checkpoint.resume=auto", "checkpoint.save_every=1",
                                             "optimizer.lr=1e38", "optimizer.decay=constant",
                                             "optimizer.weight_decay=1e38"};
  expect_refused(folder_.run("a", overflow), "weight is not finite");
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("a", 4)));
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("a", 4) + ".tmp"));
  EXPECT_EQ(latest("a"), "step_00000003\n");
  expect_all_finite(folder_.checkpoint("a", 3));
}

TEST_F(Interruption, FileSizeLimitBelowACheckpointIsRefusedAtTheStart) {
  const Result result = folder_.run("a", {"checkpoint.save_every=2"}, "base", "ulimit -f 64;");
  expect_refused(result, "this process may write only 32768 (ulimit -f)");
  EXPECT_EQ(result.out.find("grad norm"), std::string::npos) << result.out;
}

// metrics.jsonl reaches the limit, but the console's file does not: its lines wait in memory, and training continues.
TEST_F(Interruption, LogsThatCannotBeWrittenDoNotEndTheRun) {
  const Result result = folder_.run("a", {"training.train_steps=150", "checkpoint.save_last=false"}, "base",
                                    "ulimit -f 64;");  // 32 KiB
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(result.error, "");
  TE_EXPECT_CONTAINS(result.out, "metrics.jsonl: cannot be written: File too large; training continues");
  TE_EXPECT_CONTAINS(result.out, "] 150/150 ");
  TE_EXPECT_CONTAINS(result.out, "lines are lost");
  EXPECT_EQ(folder_.csv("a").size(), 150u);
}

// A file size limit that is lowered temporarily stands for a disk that is full temporarily.
TEST_F(Interruption, FullDiskDoesNotEndTheRunAndSavesAreRetried) {
  const pid_t child = folder_.start("a", {"training.train_steps=1000000", "checkpoint.save_every=20"});
  wait_for_lines(200);
  const auto limit = [child](rlim_t bytes) {
    const struct rlimit limits = {bytes, RLIM_INFINITY};
    EXPECT_EQ(::prlimit(child, RLIMIT_FSIZE, &limits, nullptr), 0);
  };
  // The console's file is smaller.
  limit(static_cast<rlim_t>(std::filesystem::file_size(folder_.run_folder("a") + "/metrics.jsonl")));
  wait_for_output("NOT SAVED: ");
  wait_for_output("metrics.jsonl: cannot be written: File too large");
  limit(RLIM_INFINITY);
  wait_for_output("metrics.jsonl: writing again; 0 lines are missing");
  ::kill(child, SIGTERM);
  const Result result = folder_.wait(child);
  EXPECT_EQ(result.code, 130) << result.error;
  EXPECT_EQ(result.error, "");
  const std::vector<double> steps = folder_.column("a", "step");
  for (size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], static_cast<double>(i + 1));
  const std::string records = read_file(folder_.run_folder("a") + "/metrics.jsonl");
  EXPECT_EQ(std::ranges::count(records, '\n'), static_cast<int64_t>(steps.size()));
  EXPECT_EQ(latest("a"), checkpoint::step_name(static_cast<int64_t>(steps.size())) + "\n");
}

TEST_F(Interruption, ShrinkingDatasetEndsTheRunWithOneLine) {
  const pid_t child = folder_.start("a", {"training.train_steps=1000000"});
  wait_for_lines(4);
  std::filesystem::resize_file(folder_ / "train.bin", 0);
  expect_refused(folder_.wait(child), "train.bin: became shorter while it was in use");
}

// There is no later save that could succeed.
TEST_F(Interruption, FailedSaveLeavesThePreviousCheckpoint) {
  EXPECT_EQ(folder_.run("a", {"training.train_steps=3"}).code, 0);
  const std::string before = folder_.checkpoint_bytes("a", 3);
  const pid_t child = folder_.start(
      "a", {"checkpoint.resume=auto", "checkpoint.save_every=1000000", "training.train_steps=1000000"});
  wait_for_lines(6);
  const struct rlimit limits = {60 << 10, RLIM_INFINITY};
  EXPECT_EQ(::prlimit(child, RLIMIT_FSIZE, &limits, nullptr), 0);
  ::kill(child, SIGTERM);
  const Result result = folder_.wait(child);
  expect_refused(result, "model.safetensors.tmp: writing failed: File too large");
  TE_EXPECT_CONTAINS(result.out, "newest checkpoint: " + folder_.checkpoint("a", 3));
  EXPECT_EQ(latest("a"), "step_00000003\n");
  EXPECT_EQ(folder_.checkpoint_bytes("a", 3), before);
  int64_t entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(folder_.run_folder("a") + "/checkpoints"))
    ++entries;
  EXPECT_EQ(entries, 2);  // the checkpoint and `latest`
  EXPECT_EQ(folder_.run("a", {"checkpoint.resume=auto"}).code, 0);
  EXPECT_EQ(folder_.csv("a").size(), 6u);
}

TEST_F(Interruption, SavingAStepAgainReplacesItsCheckpoint) {
  EXPECT_EQ(folder_.run("a", {"checkpoint.save_every=3"}).code, 0);
  const Result again =
      folder_.run("a", {"checkpoint.resume=" + folder_.checkpoint("a", 3), "optimizer.weight_decay=0.5"});
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(folder_.run("b", {"optimizer.weight_decay=0.1"}).code, 0);
  EXPECT_NE(folder_.checkpoint_bytes("a", 6), folder_.checkpoint_bytes("b", 6));
  EXPECT_FALSE(std::filesystem::exists(folder_.checkpoint("a", 6) + ".tmp"));
  EXPECT_EQ(folder_.csv("a").size(), 6u);
  EXPECT_EQ(latest("a"), "step_00000006\n");
}

}  // namespace
}  // namespace te
