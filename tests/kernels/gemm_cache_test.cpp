// The file of selected algorithms: persistence, sharing between processes, and validation.
#include "kernels/gemm/gemm_cache.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "testing/temporary_folder.h"

static bool locks_are_missing = false;

/// The system's flock, or that of a file system without locks.
extern "C" int flock(int file, int operation) noexcept {
  if (!locks_are_missing) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

namespace te::kernels {
namespace {

namespace fs = std::filesystem;
using Entry = GemmCache::Entry;

class GemmCacheFile : public ::testing::Test {
 protected:
  GemmCache open(const std::string& gpu = "NVIDIA H200", uint64_t library = 130101) const {
    return {folder_.path().string(), gpu, library};
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }

  te::testing::TemporaryFolder folder_;
};

/// On a file system with locks, and on one without.
class GemmCacheShared : public GemmCacheFile, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { locks_are_missing = GetParam(); }
  void TearDown() override { locks_are_missing = false; }
};
INSTANTIATE_TEST_SUITE_P(Locks, GemmCacheShared, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "missing" : "there"; });

/// Runs `body` in `count` concurrent processes; returns each one's result, a byte.
std::vector<int> in_processes(int count, const std::function<int(int process)>& body) {
  std::vector<pid_t> children;
  for (int process = 0; process < count; ++process) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body(process));
    children.push_back(child);
  }
  std::vector<int> results;
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    results.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return results;
}

TEST_F(GemmCacheFile, KeepsWhatWasAdded) {
  const Entry one{1, {0, 1, 0xfe, 0xff}}, two{2, {7}};
  GemmCache first = open();
  EXPECT_EQ(first.find("a"), nullptr);
  first.add("a", one);
  first.add("m 8192 n 4096", two);
  const GemmCache second = open();
  ASSERT_NE(second.find("a"), nullptr);
  EXPECT_EQ(*second.find("a"), one);
  ASSERT_NE(second.find("m 8192 n 4096"), nullptr);
  EXPECT_EQ(*second.find("m 8192 n 4096"), two);
  EXPECT_EQ(second.path(), (folder_ / "gemm_NVIDIA-H200_cublaslt130101.txt").string());
}

TEST_F(GemmCacheFile, BelongsToOneGpuAndLibrary) {
  open().add("a", {1, {1}});
  EXPECT_EQ(open("NVIDIA H100").find("a"), nullptr);
  EXPECT_EQ(open("NVIDIA H200", 130200).find("a"), nullptr);
  // A file that was copied to another name still belongs to the first GPU.
  fs::copy_file(open().path(), open("NVIDIA H100").path());
  EXPECT_EQ(open("NVIDIA H100").find("a"), nullptr);
}

TEST_F(GemmCacheFile, AFileWithAnyByteChangedOrMissingCountsAsEmpty) {
  open().add("a", {1, {1, 2, 3}});
  const std::string path = open().path(), good = read(path);
  ASSERT_FALSE(good.empty());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    write(path, bad);
    EXPECT_EQ(open().find("a"), nullptr) << "byte " << i;
    write(path, good.substr(0, i));
    EXPECT_EQ(open().find("a"), nullptr) << "cut at " << i;
  }
  write(path, good);
  EXPECT_NE(open().find("a"), nullptr);
}

TEST_F(GemmCacheFile, ADamagedFileIsReplaced) {
  GemmCache cache = open();
  write(cache.path(), "nonsense");
  cache.add("a", {1, {1}});
  EXPECT_NE(open().find("a"), nullptr);
}

TEST_F(GemmCacheFile, GreaterEffortWinsOtherwiseTheFirst) {
  GemmCache early = open(), late = open();
  early.add("a", {1, {1}});
  late.add("a", {1, {2}});  // chosen at the same time by another process
  EXPECT_EQ(open().find("a")->algorithm, std::vector<uint8_t>{1});
  early.add("a", {2, {3}});
  late.add("b", {1, {4}});
  EXPECT_EQ(open().find("a")->algorithm, std::vector<uint8_t>{3});
  EXPECT_EQ(open().find("b")->algorithm, std::vector<uint8_t>{4});
}

TEST_F(GemmCacheFile, ADroppedEntryIsReplaced) {
  GemmCache cache = open();
  cache.add("a", {2, {1}});
  cache.drop("a");
  EXPECT_EQ(cache.find("a"), nullptr);
  cache.add("a", {1, {2}});
  EXPECT_EQ(open().find("a")->algorithm, std::vector<uint8_t>{2});
}

TEST_P(GemmCacheShared, ProcessesThatWriteAtOnceLoseNothing) {
  constexpr int kProcesses = 4, kEntries = 8;
  EXPECT_EQ(
      in_processes(
          kProcesses,
          [&](int process) {
            GemmCache cache = open();
            for (int i = 0; i < kEntries; ++i)
              cache.add(std::to_string(process) + " " + std::to_string(i), {1, {static_cast<uint8_t>(i)}});
            return 0;
          }),
      std::vector<int>(kProcesses, 0));
  const GemmCache cache = open();
  for (int process = 0; process < kProcesses; ++process)
    for (int i = 0; i < kEntries; ++i)
      EXPECT_NE(cache.find(std::to_string(process) + " " + std::to_string(i)), nullptr)
          << process << ' ' << i;
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
}

TEST_P(GemmCacheShared, FirstProcessSelectsForAllConcurrentOnes) {
  const std::vector<int> taken = in_processes(4, [&](int process) {
    GemmCache cache = open();
    const auto lock = cache.search();
    if (const Entry* others = cache.find("a")) return static_cast<int>(others->algorithm[0]);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the search
    cache.add("a", {process % 2, {static_cast<uint8_t>(process + 1)}});
    return process + 1;
  });
  EXPECT_GT(taken[0], 0);
  EXPECT_EQ(taken, std::vector<int>(4, taken[0]));
  EXPECT_EQ(open().find("a")->algorithm, std::vector<uint8_t>{static_cast<uint8_t>(taken[0])});
}

TEST_P(GemmCacheShared, DeadSearchDoesNotBlockOthers) {
  EXPECT_EQ(in_processes(1,
                         [&](int) {
                           GemmCache cache = open();
                           const auto lock = cache.search();
                           ::_exit(7);  // without a destructor
                           return 0;
                         }),
            std::vector<int>{7});
  GemmCache cache = open();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(cache.search(), nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(cache.find("a"), nullptr);
}

TEST_F(GemmCacheFile, PipeInItsPlaceIsReplaced) {
  GemmCache cache = open();
  ASSERT_EQ(::mkfifo(cache.path().c_str(), 0600), 0);
  EXPECT_EQ(open().find("a"), nullptr);
  cache.add("a", {1, {1}});
  EXPECT_NE(open().find("a"), nullptr);
}

TEST_F(GemmCacheFile, FolderFollowsEnvironmentVariables) {
  const std::map<std::string, std::string> before = [] {
    std::map<std::string, std::string> values;
    for (const char* name : {"TE_GEMM_CACHE", "XDG_CACHE_HOME", "HOME"})
      if (const char* value = std::getenv(name)) values[name] = value;
    return values;
  }();
  ::setenv("HOME", "/home/user", 1);
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::unsetenv("TE_GEMM_CACHE");
  EXPECT_EQ(GemmCache::default_folder(), "/home/user/.cache/te-train");
  ::setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(GemmCache::default_folder(), "/caches/te-train");
  ::setenv("TE_GEMM_CACHE", "/experiment/gemm_algorithms", 1);
  EXPECT_EQ(GemmCache::default_folder(), "/experiment/gemm_algorithms");
  ::setenv("TE_GEMM_CACHE", "here", 1);
  EXPECT_EQ(GemmCache::default_folder(), fs::absolute("here").string());
  for (const char* name : {"TE_GEMM_CACHE", "XDG_CACHE_HOME", "HOME"})
    before.contains(name) ? ::setenv(name, before.at(name).c_str(), 1) : ::unsetenv(name);
}

TEST_F(GemmCacheFile, WorksWithoutAWritableFolder) {
  GemmCache nowhere("", "NVIDIA H200", 1);
  nowhere.add("a", {1, {1}});
  EXPECT_NE(nowhere.find("a"), nullptr);
  write((folder_ / "file").string(), "");
  GemmCache refused((folder_ / "file" / "below").string(), "NVIDIA H200", 1);
  EXPECT_EQ(refused.search(), nullptr);
  refused.add("a", {1, {1}});
  EXPECT_NE(refused.find("a"), nullptr);
}

}  // namespace
}  // namespace te::kernels
