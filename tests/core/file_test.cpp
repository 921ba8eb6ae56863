#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace te {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("te_file_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& text) const {
    std::ofstream(folder_ / "text") << text;
    return folder_ / "text";
  }
  fs::path folder_;
};

TEST_F(FileTest, ReadsACompleteFile) {
  EXPECT_EQ(read_file(write("one\ntwo")).text, "one\ntwo");
  const FileText empty = read_file(write(""));
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.text, "");
  EXPECT_GT(read_file("/proc/self/status").text.size(), 100u);  // stat() reports size 0
  EXPECT_EQ(File(write("0123456789")).read_at(7, 100), "789");
}

TEST_F(FileTest, ReportsWhyAFileCannotBeRead) {
  const FileText missing = read_file(folder_ / "missing");
  EXPECT_TRUE(missing.missing);
  EXPECT_EQ(missing.error, "No such file or directory");
  EXPECT_EQ(read_file(folder_).error, "is a folder, not a regular file");
  EXPECT_EQ(read_file(folder_, 100, FileKind::input).error, "is a folder, not a regular file");
  EXPECT_EQ(read_file("/dev/null").error, "is a device, not a regular file");
  EXPECT_EQ(read_file(write(std::string((2 << 20) + 1, 'x')), 2 << 20).error, "is larger than 2 MiB");
  EXPECT_FALSE(read_file(folder_).missing);
}

TEST_F(FileTest, RefusesAPipeInPlaceOfAFile) {
  EXPECT_EQ(read_file(folder_ / "pipe").error, "is a pipe, not a regular file");
  EXPECT_EQ(File(folder_ / "pipe", O_WRONLY | O_CREAT | O_TRUNC).error(), "is a pipe, not a regular file");
  EXPECT_EQ(File(folder_ / "pipe", O_RDWR | O_CREAT).error(), "is a pipe, not a regular file");
}

TEST_F(FileTest, WaitsForTheWriterOfAnInputPipe) {
  std::jthread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::ofstream(folder_ / "pipe") << std::string(200000, 'y') << "end";
  });
  const FileText read = read_file(folder_ / "pipe", kMaxTextFileBytes, FileKind::input);
  EXPECT_EQ(read.error, "");
  EXPECT_EQ(read.text.size(), 200003u);
  EXPECT_TRUE(read.text.ends_with("yend"));
}

TEST_F(FileTest, RefusesAnEndlessInput) {
  EXPECT_EQ(read_file("/dev/zero", 3 << 20, FileKind::input).error, "is larger than 3 MiB");
}

TEST_F(FileTest, SignalEndsTheWaitForAWriter) {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval soon = {{}, {0, 50000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &soon, nullptr), 0);
  EXPECT_EQ(read_file(folder_ / "pipe", 100, FileKind::input).error,
            "interrupted by a signal before a writer opened it");
  ::sigaction(SIGALRM, &before, nullptr);
}

}  // namespace
}  // namespace te
