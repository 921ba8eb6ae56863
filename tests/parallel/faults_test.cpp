// A rank that dies, throws or hangs ends the complete job within kLimitSeconds, with the exit code of the failure and a
// message that names the rank and the reason.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>

namespace te::parallel {
namespace {

constexpr double kLimitSeconds = 60;

struct Outcome {
  int code = -1;
  double seconds = 0;
  std::string text;  // stdout and stderr

  size_t count(const std::string& words) const {
    size_t found = 0;
    for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++found) ++at;
    return found;
  }
};

Outcome run(const std::string& command) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(("timeout -s KILL 90 " + command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) outcome.text += buffer.data();
  const int status = pclose(pipe);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (WIFEXITED(status)) outcome.code = WEXITSTATUS(status);
  return outcome;
}

Outcome run_ranks(int ranks, const std::string& how) {
  const Outcome outcome =
      run(std::string(TE_MPIRUN) + " " + std::to_string(ranks) + " " + TE_FAULT_PROGRAM + " " + how);
  EXPECT_LT(outcome.seconds, kLimitSeconds) << outcome.text;
  return outcome;
}

TEST(Faults, JobWithoutFaultSucceeds) {
  const Outcome outcome = run_ranks(4, "none");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_EQ(outcome.count("done, 4 ranks, hosts 1"), 1) << outcome.text;
}

TEST(Faults, OneRankWithoutALauncher) {
  const Outcome outcome = run(std::string(TE_FAULT_PROGRAM) + " none");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_EQ(outcome.count("done, 1 ranks, hosts 1"), 1) << outcome.text;
}

TEST(Faults, RefusesAnMpiWithoutThreadsInOneMessage) {
  const Outcome outcome = run_ranks(2, "no_threads");
  EXPECT_EQ(outcome.code, 2) << outcome.text;
  EXPECT_EQ(outcome.count("fault: error: MPI provides thread level 0, but "), 1) << outcome.text;
  EXPECT_EQ(outcome.count("done"), 0) << outcome.text;
}

TEST(Faults, KilledRankEndsTheJob) {
  const Outcome outcome = run_ranks(4, "killed");
  EXPECT_EQ(outcome.code, 128 + SIGKILL) << outcome.text;
  EXPECT_EQ(outcome.count("done"), 0) << outcome.text;
}

TEST(Faults, WatchdogNamesTheHungRank) {
  for (const char* how : {"hung", "stopped"}) {
    const Outcome outcome = run_ranks(4, how);
    EXPECT_EQ(outcome.code, 1) << outcome.text;
    // Each of the other ranks reports what it waits for; one of them reports the status of all ranks.
    EXPECT_GE(outcome.count("in all_reduce max of data (ranks 0, 1, 2, 3)"), 1) << outcome.text;
    EXPECT_GE(outcome.count(", during step 2)"), 1) << outcome.text;
    EXPECT_EQ(outcome.count("rank 3 is not communicating, "), 1) << outcome.text;
    EXPECT_EQ(outcome.count("s in all_reduce max of data (its operation"), 2) << outcome.text;
    EXPECT_EQ(outcome.count("s after all_reduce max of data (its operation 6, during mischief)"), 1)
        << outcome.text;
    EXPECT_EQ(outcome.count("watchdog: rank 3"), 0) << outcome.text;
  }
}

TEST(Faults, WatchdogReportsAHungDevice) {
  const Outcome outcome = run_ranks(2, "device_hangs");
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_GE(outcome.count("s for the device in step 12; no communication is pending on the device"), 1)
      << outcome.text;
  EXPECT_EQ(outcome.count("s for the device in step 12, last launched"), 1) << outcome.text;
  EXPECT_EQ(run(std::string(TE_FAULT_PROGRAM) + " device_hangs").code, 1);
}

TEST(Faults, ExceptionOfOneRankEndsTheJobWithItsExitCode) {
  const Outcome user = run_ranks(4, "user_error");
  EXPECT_EQ(user.code, 2) << user.text;
  EXPECT_EQ(user.count("fault: rank 3: error: data.train: no such file\n"), 1) << user.text;
  const Outcome internal = run_ranks(4, "internal_error");
  EXPECT_EQ(internal.code, 1) << internal.text;
  EXPECT_EQ(internal.count("fault: rank 3: internal error: weights are gone"), 1) << internal.text;
}

TEST(Faults, ErrorNamesAnOperationWithMismatchedSizes) {
  const Outcome outcome = run_ranks(3, "mismatch");
  EXPECT_EQ(outcome.code, 1) << outcome.text;
  EXPECT_GE(outcome.count("all_gather of data (ranks 0, 1, 2)"), 1) << outcome.text;
}

TEST(Faults, CollectiveFailureIsPrintedOnce) {
  const Outcome all = run_ranks(4, "all_refuse");
  EXPECT_EQ(all.code, 2) << all.text;
  EXPECT_EQ(all.count("fault: error: parallel.tensor: 3 does not divide 4 heads\n"), 1) << all.text;
  EXPECT_EQ(all.count("3 does not divide"), 1) << all.text;

  const Outcome one = run_ranks(4, "last_refuses");
  EXPECT_EQ(one.code, 2) << one.text;
  EXPECT_EQ(one.count("fault: rank 3: error: data.train: no such file\n"), 1) << one.text;

  const Outcome two = run_ranks(3, "two_reasons");
  EXPECT_EQ(two.code, 2) << two.text;
  EXPECT_EQ(two.count("fault: rank 2: error: disk: full\n"), 1) << two.text;
  EXPECT_EQ(two.count("fault: ranks 0, 1: error: memory: full\n"), 1) << two.text;

  const Outcome plain = run(std::string(TE_FAULT_PROGRAM) + " all_refuse");
  EXPECT_EQ(plain.code, 2) << plain.text;
  EXPECT_EQ(plain.text, "fault: error: parallel.tensor: 3 does not divide 4 heads\n");
}

TEST(Faults, JobHasTheExitCodeOfTheBody) {
  EXPECT_EQ(run_ranks(2, "code_three").code, 3);
}

}  // namespace
}  // namespace te::parallel
