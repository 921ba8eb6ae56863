// te-train with several ranks: one log, the losses of one rank, errors, signals, and ranks that die or hang.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "te_train_testing.h"
#include "testing/eventually.h"

namespace te {
namespace {

/// The content of a /proc file; empty if its process has just ended.
std::string process_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

using testing::operator+;
using testing::eventually;
using testing::Overrides;
using testing::read_file;
using testing::Result;
using testing::split;
using testing::TrainFolder;
/// A fault must end the whole job within this time.
constexpr double kLimitSeconds = 60;

size_t count(const std::string& text, const std::string& words) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++found) ++at;
  return found;
}

/// Process ids of mpirun's ranks on this host, by rank.
std::map<int, pid_t> ranks_of(pid_t mpirun) {
  std::map<int, pid_t> ranks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = process_file(entry.path().string() + "/status");
    if (count(status, "\nPPid:\t" + std::to_string(mpirun) + "\n") == 0) continue;
    for (const std::string& variable : split(read_file(entry.path().string() + "/environ"), '\0')) {
      for (const char* key : {"OMPI_COMM_WORLD_RANK=", "PMIX_RANK="}) {
        if (variable.starts_with(key))
          ranks[std::stoi(variable.substr(variable.find('=') + 1))] = std::stoi(name);
      }
    }
  }
  return ranks;
}

/// False for a process that has ended, even if it has not been reaped.
bool runs(pid_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/status";
  return std::filesystem::exists(path) && count(process_file(path), "\nState:\tZ") == 0;
}

class Mpirun : public ::testing::Test {
 protected:
  Mpirun() {
    folder_.write_config(
        "base",
        "model: {family: llama, num_layers: 4, hidden_size: 32, ffn_hidden_size: 64,\n"
        "        num_attention_heads: 4, num_query_groups: 2, vocab_size: 257, seq_length: 16}\n"
        "precision: {amax_history_len: 4}\n"
        "training: {micro_batch_size: 2, global_batch_size: 8, train_steps: 6, device: cpu}\n"
        "optimizer: {lr: 5.0e-3, min_lr: 5.0e-4, decay_steps: 6}\n"
        "checkpoint: {save_last: false}\n"
        "data: {train: " +
            (folder_ / "train") + ", valid: " + (folder_ / "valid") + "}\n");
  }

  Result run(int ranks, const std::string& name, const Overrides& overrides) {
    folder_.use_ranks(ranks);
    return folder_.run(name, overrides);
  }
  /// Starts a job that runs until it is stopped, and returns once it has logged a few steps.
  pid_t start_endless(int ranks, const Overrides& overrides) {
    folder_.use_ranks(ranks);
    const pid_t mpirun = folder_.start("a", overrides + Overrides{"training.train_steps=1000000"});
    const std::string csv = folder_.run_folder("a") + "/loss.csv";
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(csv) && count(read_file(csv), "\n") >= 4; }));
    return mpirun;
  }
  /// Sends a signal to one rank.
  Result fault(int ranks, int rank, int signal, const Overrides& overrides) {
    const pid_t mpirun = start_endless(ranks, overrides);
    const std::map<int, pid_t> processes = ranks_of(mpirun);
    EXPECT_EQ(processes.size(), static_cast<size_t>(ranks)) << read_file(folder_ / "stderr");
    if (processes.contains(rank)) ::kill(processes.at(rank), signal);
    return ended(mpirun, processes);
  }
  /// Four ranks, of which rank 1 hangs when it sends its message number `message`.
  Result hang_in_message(int message, const Overrides& overrides) {
    folder_.use_ranks(4, "env LD_PRELOAD=" TE_STOP_RANK_LIBRARY " TE_TEST_STOP_RANK=1 TE_TEST_STOP_CALL=" +
                             std::to_string(message));
    const pid_t mpirun = folder_.start("a", overrides);
    std::map<int, pid_t> processes;
    EXPECT_TRUE(eventually([&] { return (processes = ranks_of(mpirun)).size() == 4; }));
    const std::string status = "/proc/" + std::to_string(processes[1]) + "/status";
    EXPECT_TRUE(eventually([&] { return count(process_file(status), "\nState:\tT") == 1; }));
    return ended(mpirun, processes);
  }
  /// The job must end soon without leaving processes.
  Result ended(pid_t mpirun, const std::map<int, pid_t>& processes) {
    const auto start = std::chrono::steady_clock::now();
    std::thread limit([&] {  // a job that does not end must not hang the test
      for (int tick = 0; tick < 600 && !ended_; ++tick)
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (!ended_) ::kill(mpirun, SIGKILL);
    });
    const Result result = folder_.wait(mpirun);
    ended_ = true;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    limit.join();
    EXPECT_LT(seconds.count(), kLimitSeconds);
    EXPECT_NE(result.code, 0);
    // mpirun may return a moment before its last rank is gone.
    eventually([&] { return std::ranges::none_of(processes, [](const auto& p) { return runs(p.second); }); },
               std::chrono::seconds(20));
    for (const auto& [number, process] : processes)
      EXPECT_FALSE(runs(process)) << "rank " << number << " lives";
    return result;
  }

  TrainFolder folder_;
  std::atomic<bool> ended_ = false;
};

TEST_F(Mpirun, LogsOnceLikeOneRank) {
  const Overrides common = {"precision.dtype=fp32", "training.eval_interval=3",
                            "training.eval_microbatches=3"};
  ASSERT_EQ(folder_.run("one", common).code, 0);
  struct Job {
    int ranks;
    std::string name;
    Overrides layout;
  };
  const Job jobs[] = {
      {4,
       "tp2_pp2",
       {"parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2",
        "parallel.schedule=zero_bubble"}},
      {2, "dp2", {"parallel.bucket_size=1000"}},
  };
  for (const Job& job : jobs) {
    SCOPED_TRACE(job.name);
    const Result result = run(job.ranks, job.name, common + job.layout);
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(count(result.out, "\nmemory     "), 1u);
    const auto rows = folder_.csv(job.name), expected = folder_.csv("one");
    ASSERT_EQ(rows.size(), 6u);
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const char* column : {"step", "consumed_tokens", "lr", "skipped"})
        EXPECT_EQ(rows[i].at(column), expected[i].at(column));
      for (const char* column : {"loss", "valid_loss", "grad_norm"}) {
        ASSERT_EQ(rows[i].at(column).empty(), expected[i].at(column).empty()) << column;
        if (rows[i].at(column).empty()) continue;
        const double value = std::stod(expected[i].at(column));
        EXPECT_NEAR(std::stod(rows[i].at(column)), value, 1e-5 * value) << column << " of step " << i + 1;
      }
    }
    EXPECT_EQ(count(read_file(folder_.run_folder(job.name) + "/metrics.jsonl"), "\n"), 6u);
  }
}

// Documents, and the targets that count, end anywhere in the tokens of two ranks. A blend of two datasets gives losses
// by source, summed over the ranks' parts of every sample.
TEST_F(Mpirun, ContextParallelRanksTrainLikeOneRank) {
  Overrides common = {"precision.dtype=fp32",
                      "training.eval_interval=3",
                      "training.eval_microbatches=3",
                      "data.document_mask=true",
                      "data.eod_mask_loss=true",
                      "logging.loss_by_source=true",
                      "data.train=[[1.0, " + (folder_ / "train") + "], [1.0, " + (folder_ / "valid") + "]]"};
  for (const char* groups : {"2", "1"}) {  // all-to-all of heads, or all-gather of keys and values
    SCOPED_TRACE(groups);
    const Overrides model = common + Overrides{std::string("model.num_query_groups=") + groups};
    const std::string one = std::string("one") + groups, two = std::string("cp2_dp2_") + groups;
    ASSERT_EQ(run(1, one, model).code, 0);
    const Result result = run(4, two, model + Overrides{"parallel.context=2"});
    ASSERT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(count(result.out, "context 2"), 1u) << result.out;
    const auto rows = folder_.csv(two), expected = folder_.csv(one);
    ASSERT_EQ(rows.size(), 6u);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].at("consumed_tokens"), expected[i].at("consumed_tokens"));
      for (const char* column : {"loss", "valid_loss", "grad_norm"}) {
        ASSERT_EQ(rows[i].at(column).empty(), expected[i].at(column).empty()) << column;
        if (rows[i].at(column).empty()) continue;
        const double value = std::stod(expected[i].at(column));
        EXPECT_NEAR(std::stod(rows[i].at(column)), value, 1e-5 * value) << column << " of step " << i + 1;
      }
    }
    const auto sources = [&](const std::string& run) {
      std::vector<nlohmann::json> all;
      for (const nlohmann::json& record : folder_.records(run)) all.push_back(record.at("sources"));
      return all;
    };
    const auto found = sources(two), whole = sources(one);
    ASSERT_EQ(found.size(), whole.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].size(), whole[i].size());
      for (const auto& [source, expected] : whole[i].items()) {
        EXPECT_EQ(found[i].at(source).at("tokens"), expected.at("tokens"));
        EXPECT_NEAR(found[i].at(source).at("loss").get<double>(), expected.at("loss").get<double>(), 1e-4);
      }
    }
  }
}

TEST_F(Mpirun, HealthOfAllStagesIsLogged) {
  const Result result = run(4, "a",
                            {"precision.fp8=hybrid", "parallel.tensor=2", "parallel.sequence=true",
                             "parallel.pipeline=2", "logging.fp8_stats_every=3"});
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(count(result.out + result.error, "FP8 scales calibrated"), 1u);
  int with_health = 0;
  for (const nlohmann::json& record : folder_.records("a")) {
    if (!record.contains("fp8")) continue;
    ++with_health;
    std::map<std::string, int> operands;
    for (const nlohmann::json& item : record["fp8"]) {
      operands[item["linear"].get<std::string>() + " " + item["role"].get<std::string>()] += 1;
      EXPECT_GT(item["amax"].get<double>(), 0) << item;
    }
    EXPECT_EQ(operands.size(), 48u);  // 4 layers, 4 linears, 3 roles
    for (const auto& [name, times] : operands) EXPECT_EQ(times, 1) << name;
  }
  EXPECT_EQ(with_health, 3);  // steps 1, 3 and 6
}

TEST_F(Mpirun, InvalidLayoutsAreRefusedInOneLine) {
  const auto refused = [&](int ranks, const Overrides& overrides, const std::string& words) {
    const Result result = run(ranks, "a", overrides);
    EXPECT_EQ(result.code, 2) << result.error;
    EXPECT_EQ(count(result.error, "te-train: "), 1u) << result.error;
    EXPECT_EQ(count(result.error, words), 1u) << result.error;
    EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a")));
  };
  refused(3, {"parallel.tensor=2"}, "te-train: error: ");
  refused(2, {"parallel.pipeline=4"}, "te-train: error: ");
  refused(3, {},
          "te-train: error: training.global_batch_size (8) is not a multiple of training.micro_batch_size * "
          "data-parallel ranks = 2 * 3 = 6: 2 remain");
  refused(2, {"parallel.tensor=2", "model.num_query_groups=1"}, "te-train: error: ");
  refused(2, {"data.train=" + (folder_ / "none")}, "te-train: error: data.train: ");
}

// Otherwise rank 0 would wait at the first checkpoint for files that another rank has written elsewhere.
TEST_F(Mpirun, RanksWithSeparateCheckpointFoldersAreRefused) {
  folder_.use_ranks(2, "sh -c 'cd " + (folder_ / "") + "$OMPI_COMM_WORLD_RANK && exec \"$0\" \"$@\"'");
  for (const char* rank : {"0", "1"}) std::filesystem::create_directory(folder_ / rank);
  const Result result = folder_.run("a", {"checkpoint.directory=saved", "checkpoint.save_last=true"});
  EXPECT_EQ(result.code, 2) << result.error;
  TE_EXPECT_CONTAINS(result.error, "checkpoint.directory: " + (folder_ / "1/saved") + " of ");
  EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a") + "/loss.csv"));
}

// Each process of srun --mpi=pmi2 or of another MPI's mpirun would train alone.
TEST_F(Mpirun, ALauncherThatMpiDoesNotKnowIsRefused) {
  ::setenv("PMI_RANK", "0", 1);
  ::setenv("PMI_SIZE", "2", 1);
  const Result result = run(1, "a", {});
  ::unsetenv("PMI_RANK");
  ::unsetenv("PMI_SIZE");
  EXPECT_EQ(result.code, 2) << result.error;
  TE_EXPECT_CONTAINS(result.error,
                     "error: the launcher started 2 processes, but MPI sees one: use the mpirun");
  EXPECT_FALSE(std::filesystem::exists(folder_.run_folder("a")));
}

TEST_F(Mpirun, DivergenceIsReportedOnce) {
  const Result result = run(4, "a",
                            {"parallel.tensor=2", "training.train_steps=50", "optimizer.decay=constant",
                             "optimizer.lr=1e30", "optimizer.clip_grad=0", "training.max_nonfinite_steps=2"});
  EXPECT_EQ(result.code, 3) << result.out << result.error;
  EXPECT_EQ(count(result.out + result.error, "stopped: loss or gradient was not finite"), 1u)
      << result.out << result.error;
}

// No save succeeds, which only rank 0 knows: all ranks must continue without a checkpoint to roll back to, and apply
// the loss spikes. A rank that decided differently would wait in a collective forever.
TEST_F(Mpirun, RanksAgreeOnTheCheckpointToRollBackTo) {
  testing::Documents documents(30, std::vector<int32_t>(150, 7));
  std::vector<int32_t>& odd = documents.emplace_back();
  for (int i = 0; i < 40; ++i) odd.push_back(100 + i * 37 % 150);
  testing::write_dataset(folder_ / "odd", documents);
  const Overrides spikes = {"data.train=" + (folder_ / "odd"),
                            "training.seed=4",
                            "training.train_steps=40",
                            "training.global_batch_size=4",
                            "optimizer.lr=1e-2",
                            "optimizer.decay=constant",
                            "checkpoint.save_every=5",
                            "training.loss_spikes=rollback",
                            "parallel.timeout_seconds=10",
                            "logging.fp8_stats_every=0",
                            "model.num_layers=2",
                            "model.ffn_hidden_size=48"};
  std::filesystem::create_directories(folder_.run_folder("a") + "/checkpoints/latest.tmp/in the way");
  const Result failing = run(2, "a", spikes);
  EXPECT_EQ(failing.code, 2) << failing.out << failing.error;  // nor the last one
  EXPECT_EQ(count(failing.out, "] 40/40 "), 1u) << failing.out;
  EXPECT_GE(count(failing.out, "NOT SAVED"), 1u) << failing.out;
  EXPECT_GE(count(failing.out, "loss spike in step "), 1u) << failing.out;
  EXPECT_EQ(count(failing.out, "rolled back from"), 0u) << failing.out;
  const Result saving = run(2, "b", spikes);
  EXPECT_EQ(saving.code, 0) << saving.out << saving.error;
  EXPECT_GE(count(saving.out, "rolled back from step "), 1u) << saving.out;
}

TEST_F(Mpirun, KilledRankEndsTheJob) {
  const Result result = fault(4, 2, SIGKILL, {"parallel.tensor=2"});
  // The remaining ranks cannot save.
  EXPECT_EQ(count(result.out, "saving a checkpoint"), 0u) << result.out;
  EXPECT_EQ(count(result.error, "rank 2 has ended, so the job ends: the current step is lost"), 1u)
      << result.error;
}

TEST_F(Mpirun, HungRankIsReportedWithTheOperation) {
  const Result result = hang_in_message(20, {"parallel.tensor=2", "parallel.pipeline=2",
                                             "parallel.schedule=1f1b", "parallel.timeout_seconds=5"});
  EXPECT_EQ(result.code, 1);
  EXPECT_GE(count(result.error, "watchdog: rank "), 1u) << result.error;
  // "has waited" if another rank reports within two seconds after the hang, because it had waited before.
  const std::regex report(
      "; rank 1 has (not run for [0-9.]+ s, stopped|waited [0-9.]+ s) in all_reduce of tensor \\(its "
      "operation "
      "[0-9]+, during forward of microbatch ");
  EXPECT_TRUE(std::regex_search(result.error, report)) << result.error;
}

// A training step has fewer than 300 messages, and each validation more.
TEST_F(Mpirun, RankThatHangsInValidationIsReported) {
  testing::write_dataset(folder_ / "long", testing::Documents(200, std::vector<int32_t>(161, 7)));
  const Result result =
      hang_in_message(300, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.timeout_seconds=4",
                            "training.eval_interval=1", "training.eval_microbatches=10000",
                            "data.valid=" + (folder_ / "long")});
  EXPECT_EQ(result.code, 1);
  EXPECT_GE(count(result.error, "watchdog: rank "), 1u) << result.error;
  EXPECT_GE(count(result.error, "during evaluation"), 1u) << result.error;
}

// A save takes much longer than a step here.
TEST_F(Mpirun, RankThatHangsDuringASaveEndsTheJob) {
  const Result result =
      fault(2, 1, SIGSTOP,
            {"parallel.tensor=2", "parallel.timeout_seconds=4", "checkpoint.save_every=1",
             "checkpoint.async=false", "checkpoint.keep=2", "training.global_batch_size=2"});
  EXPECT_GE(count(result.error, "watchdog: ") + count(result.error, "rank 1 has not finished its files"), 1u)
      << result.error;
}

// Once mpirun was asked to end its ranks, it no longer reads their output; a stopped mpirun stands for that. The
// terminal that it made for rank 0 fills up, and rank 0 blocks in the middle of a line.
TEST_F(Mpirun, RankThatCannotPrintStillSaves) {
  const pid_t mpirun = start_endless(2, {"logging.fp8_stats_every=0"});
  const std::map<int, pid_t> processes = ranks_of(mpirun);
  EXPECT_EQ(processes.size(), 2u);
  ::kill(mpirun, SIGSTOP);
  const std::string csv = folder_.run_folder("a") + "/loss.csv";
  size_t lines = 0, standing = 0;
  for (int tick = 0; tick < 600 && standing < 20; ++tick) {
    const size_t now = count(read_file(csv), "\n");
    standing = now == lines ? standing + 1 : 0;
    lines = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_GE(standing, 20u) << "the terminal did not fill up";
  for (const auto& [rank, process] : processes) ::kill(process, SIGTERM);
  const std::string latest = folder_.run_folder("a") + "/checkpoints/latest";
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(latest); }));
  ::kill(mpirun, SIGCONT);
  if (!std::filesystem::exists(latest)) ::kill(mpirun, SIGKILL);
  EXPECT_NE(folder_.wait(mpirun).code, 0);
}

// mpirun sends SIGCONT, and SIGTERM only after the whole timeout; when its ranks have ended, it would sleep for another
// one.
TEST_F(Mpirun, StopsAtOnceDespiteMpirunsTimeout) {
  ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "300", 1);
  const pid_t mpirun = start_endless(2, {"logging.fp8_stats_every=0"});
  ::unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
  const auto start = std::chrono::steady_clock::now();
  ::kill(mpirun, SIGTERM);
  const Result result = folder_.wait(mpirun);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 60);
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(count(result.out, "mpirun kills its ranks"), 0u) << result.out;
  const std::string step = folder_.csv("a").back().at("step");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/checkpoints/latest"),
            "step_" + std::string(8 - step.size(), '0') + step + "\n");
}

// mpirun stops its ranks on Ctrl-Z, and continues them with SIGCONT, which also precedes the end of a job.
TEST_F(Mpirun, ContinuesAfterCtrlZ) {
  const pid_t mpirun = start_endless(2, {"logging.fp8_stats_every=0"});
  const std::string csv = folder_.run_folder("a") + "/loss.csv";
  ::kill(mpirun, SIGTSTP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const size_t lines = count(read_file(csv), "\n");
  ::kill(mpirun, SIGCONT);
  EXPECT_TRUE(eventually([&] { return count(read_file(csv), "\n") >= lines + 20; }));
  ::kill(mpirun, SIGUSR2);
  const Result result = folder_.wait(mpirun);
  EXPECT_EQ(count(result.out, "interrupted after step "), 1u) << result.out;
}

/// Steps of some seconds, longer than the time that mpirun gives its ranks after Ctrl-C.
const Overrides kLongSteps = {"training.train_steps=1000000", "training.global_batch_size=4800",
                              "logging.fp8_stats_every=0"};

TEST_F(Mpirun, StepLongerThanMpirunsTimeoutIsSaved) {
  folder_.use_ranks(2);
  const pid_t mpirun = folder_.start("a", kLongSteps);
  const std::string csv = folder_.run_folder("a") + "/loss.csv";
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(csv) && count(read_file(csv), "\n1,") > 0; }));
  ::kill(mpirun, SIGTERM);
  const Result result = folder_.wait(mpirun);
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(count(result.out, "mpirun kills its ranks"), 0u) << result.out;
  EXPECT_EQ(folder_.csv("a").back().at("step"), "2");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/checkpoints/latest"), "step_00000002\n");
}

// mpirun stays stopped until the ranks have saved, which never happens here.
TEST_F(Mpirun, RankThatDiesAfterAStopRequestEndsTheJob) {
  folder_.use_ranks(2);
  const pid_t mpirun = folder_.start("a", kLongSteps);
  const std::string csv = folder_.run_folder("a") + "/loss.csv";
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(csv) && count(read_file(csv), "\n1,") > 0; }));
  const std::map<int, pid_t> ranks = ranks_of(mpirun);
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(mpirun, SIGTERM);
  EXPECT_TRUE(eventually([&] {
    return count(process_file("/proc/" + std::to_string(mpirun) + "/status"), "\nState:\tT") == 1;
  })) << "mpirun was not stopped";
  ::kill(ranks.at(1), SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(folder_.wait(mpirun).code, 0);
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), kLimitSeconds);
  EXPECT_TRUE(eventually([&] { return !runs(ranks.at(0)); }));
}

// mpirun forwards these two signals and waits; a step takes longer here than the time it gives after Ctrl-C.
/// Open MPI 4.1.6 announces that it forwards a signal and drops it if no ssh is installed (plm isolated).
bool mpirun_forwards_signals(const std::string& ready) {
  const std::string script =
      TE_MPIRUN " 1 sh -c 'trap \"exit 7\" USR1; touch \"" + ready +
      "\"; i=0; while [ $i -lt 40 ]; do sleep 0.1; i=$((i+1)); done' >/dev/null 2>&1 & "
      "while [ ! -e '" +
      ready + "' ] && kill -0 $!; do sleep 0.05; done; kill -USR1 $!; wait $!";
  const int status = std::system(script.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

TEST_F(Mpirun, SignalsThatMpirunForwardsSave) {
  if (!mpirun_forwards_signals(folder_ / "ready")) GTEST_SKIP() << "this mpirun does not forward SIGUSR1";
  folder_.use_ranks(2);
  const pid_t mpirun = folder_.start(
      "a", {"training.train_steps=1000000", "training.global_batch_size=1600", "logging.fp8_stats_every=0"});
  const std::string csv = folder_.run_folder("a") + "/loss.csv";
  const auto wait_for = [&](const std::string& file, const std::string& part) {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(file) && count(read_file(file), part) > 0; }))
        << part << " is not in " << file;
  };
  wait_for(csv, "\n1,");
  ::kill(mpirun, SIGUSR1);
  wait_for(folder_ / "stdout", "saved " + folder_.run_folder("a") + "/checkpoints/step_");
  ::kill(mpirun, SIGUSR2);
  const Result result = folder_.wait(mpirun);
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(count(result.out, "a checkpoint is saved after this step"), 1u) << result.out;
  EXPECT_EQ(count(result.out, "finishing this step and saving a checkpoint"), 1u) << result.out;
  EXPECT_EQ(count(result.out, "interrupted after step "), 1u) << result.out;
  const std::string step = folder_.csv("a").back().at("step");
  EXPECT_EQ(read_file(folder_.run_folder("a") + "/checkpoints/latest"),
            "step_" + std::string(8 - step.size(), '0') + step + "\n");
}

}  // namespace
}  // namespace te
