// Logs: truncated in place, appended to, and kept in memory while the disk is full.
#include "train/log_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "core/error.h"
#include "data/data_testing.h"
#include "train/metrics.h"

namespace te::train {
namespace {

using testing::read_file;
using testing::TextFolder;
using testing::write_file;

/// "STEP,text" lines.
std::string lines(int64_t first, int64_t last, const std::string& text = "x") {
  std::string all;
  for (int64_t step = first; step <= last; ++step) all += std::to_string(step) + "," + text + "\n";
  return all;
}

class Log : public ::testing::Test {
 protected:
  std::string path_of(const std::string& name = "log") const { return folder_ / name; }
  TextFolder folder_;
};

// Lines longer than the pending limit: the first may be half written, the others are dropped completely.
TEST_F(Log, LineLongerThanThePendingLimitIsDropped) {
  struct rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  LogFile log(path_of(), "");
  const std::string huge = "2," + std::string((16 << 20) + 100, 'y');
  const struct rlimit full = {8, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &full);
  log.append("1,half written\n");
  log.append(huge + "\n");
  log.append("3,x\n" + huge);  // without a newline
  ::setrlimit(RLIMIT_FSIZE, &before);
  log.append("4,x\n");
  const std::string text = read_file(path_of());
  EXPECT_TRUE(text.starts_with("1,half written\n")) << text.substr(0, 40);
  EXPECT_TRUE(text.ends_with("4,x\n")) << text.size();
  EXPECT_LT(text.size(), size_t{17} << 20);
}

TEST_F(Log, IsTruncatedAfterAStep) {
  struct Case {
    std::string before, after;
    int64_t step, dropped;
  };
  const std::string longer(100000, 'y');  // longer than a block
  for (const Case& item :
       {Case{lines(1, 9), lines(1, 5), 5, 4},
        {lines(1, 5), lines(1, 5), 5, 0},
        {lines(1, 5) + "6,x", lines(1, 5), 9, 0},
        {lines(1, 5) + "7,x\n8,x\n6", lines(1, 5), 6, 2},
        {lines(3, 9), "", 2, 7},
        {"", "", 2, 0},
        {"half", "", 2, 0},
        {"no line\n" + lines(1, 3) + "garbage\n" + std::string(700, '\0'), "no line\n" + lines(1, 3), 3, 1},
        {lines(1, 9, longer), lines(1, 4, longer), 4, 5}}) {
    write_file(path_of(), item.before);
    EXPECT_EQ(truncate_log(path_of(), item.step, csv_step), item.dropped);
    EXPECT_EQ(read_file(path_of()), item.after);
  }
  EXPECT_EQ(truncate_log(path_of("none"), 3, csv_step), 0);
  EXPECT_EQ(last_logged_step(path_of("none"), csv_step), 0);
  write_file(path_of(), lines(1, 30) + "31,un");
  EXPECT_EQ(last_logged_step(path_of(), csv_step), 30);
}

// Truncation reads only the end, so it is fast for long logs, too.
TEST_F(Log, OnlyTheEndIsRead) {
  write_file(path_of(), lines(1, 3) + std::string(300 << 20, '\0') + "\n" + lines(5, 9));
  struct rusage before = {}, after = {};
  ::getrusage(RUSAGE_SELF, &before);
  EXPECT_EQ(truncate_log(path_of(), 7, csv_step), 2);
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 10 << 10);  // KiB
  EXPECT_EQ(last_logged_step(path_of(), csv_step), 7);
}

TEST_F(Log, StepsOfLines) {
  EXPECT_EQ(csv_step("12,1,2"), 12);
  for (const char* line : {"", "12", "x,1", "12x,1", ",", "step,loss"}) EXPECT_EQ(csv_step(line), -1) << line;
  EXPECT_EQ(json_step(R"({"loss": 1, "step": 7})"), 7);
  for (const char* line : {"", "{", "7", R"({"step": "7"})", R"({"loss": 1})"})
    EXPECT_EQ(json_step(line), -1) << line;
}

TEST_F(Log, HeaderIsWrittenOnceAndRestored) {
  for (int i = 0; i < 2; ++i) LogFile(path_of(), "head\n").append(lines(i, i));
  EXPECT_EQ(read_file(path_of()), "head\n" + lines(0, 1));
  write_file(path_of(), lines(0, 1));
  LogFile(path_of(), "head\n").append(lines(2, 2));
  EXPECT_EQ(read_file(path_of()), "head\n" + lines(0, 2));
  EXPECT_EQ(rotate_log(path_of()), path_of("log.1"));
  write_file(path_of(), "");
  EXPECT_EQ(rotate_log(path_of()), path_of("log.2"));
}

class FullDisk : public Log {
 protected:
  FullDisk() { std::signal(SIGXFSZ, SIG_IGN); }
  ~FullDisk() override { limit(RLIM_INFINITY); }
  static void limit(rlim_t bytes) {
    const struct rlimit limits = {bytes, RLIM_INFINITY};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limits), 0);
  }
};

// The limit falls within a line.
TEST_F(FullDisk, LinesWaitInMemory) {
  LogFile log(path_of(), "");
  log.append(lines(1, 3));
  limit(15);
  for (int64_t step = 4; step <= 8; ++step) log.append(lines(step, step));
  EXPECT_EQ(read_file(path_of()), (lines(1, 3) + lines(4, 8)).substr(0, 15));
  limit(RLIM_INFINITY);
  log.append(lines(9, 9));
  EXPECT_EQ(read_file(path_of()), lines(1, 9));
}

// A rollback repeats steps whose lines wait in memory. Line 5 is written in part.
TEST_F(FullDisk, TruncationDiscardsWaitingLines) {
  for (const int64_t last : {2, 4, 5, 6}) {
    std::filesystem::remove(path_of());
    LogFile log(path_of(), "");
    log.append(lines(1, 4));
    limit(18);
    log.append(lines(5, 8));
    truncate_log(path_of(), last, csv_step);
    log.truncated(last, csv_step);
    limit(RLIM_INFINITY);
    log.append(lines(last + 1, last + 2));
    EXPECT_EQ(read_file(path_of()), lines(1, last + 2)) << last;
  }
}

// Beyond the pending limit the oldest complete lines are dropped.
TEST_F(FullDisk, OldestLinesAreDropped) {
  const std::string text(1 << 20, 'z');
  {
    LogFile log(path_of(), "");
    limit(3);
    for (int64_t step = 1; step <= 40; ++step) log.append(lines(step, step, text));
    limit(RLIM_INFINITY);
    log.append(lines(41, 41));
  }
  const std::string all = read_file(path_of());
  EXPECT_EQ(all.substr(0, text.size() + 3), lines(1, 1, text));
  EXPECT_LE(all.size(), RecordFile::kMaxPending + 3 * text.size());
  EXPECT_TRUE(all.ends_with(lines(39, 40, text) + lines(41, 41)));
}

}  // namespace
}  // namespace te::train
