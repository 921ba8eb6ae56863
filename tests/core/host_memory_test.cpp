// Available memory of the host, read from fake trees of /proc and control groups.
#include "core/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "core/device.h"
#include "testing/folder_of_files.h"

namespace te {
namespace {

class HostMemory : public ::testing::Test {
 protected:
  HostMemory() { root_.write("proc/meminfo", "MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable: 1000 kB\n"); }
  int64_t available() const { return available_host_bytes(root_.path().string()); }

  testing::FolderOfFiles root_;
};

TEST_F(HostMemory, KernelsEstimateWithoutLimits) {
  EXPECT_EQ(available(), 1024000);
}

// MemFree leaves out page cache, so that a machine which has read large files seemed to have no memory.
TEST(Device, FreeHostMemoryIncludesPageCache) {
  const int64_t before = available_host_bytes();
  const DeviceInfo info = Context::cpu().info();
  const int64_t after = available_host_bytes();
  EXPECT_LE(info.free_bytes, info.memory_bytes);
  EXPECT_NEAR(static_cast<double>(info.free_bytes), static_cast<double>(std::min(before, info.memory_bytes)),
              static_cast<double>(std::abs(after - before)) + 0.02 * static_cast<double>(info.memory_bytes));
}

TEST_F(HostMemory, TightestLimitOfVersion2Groups) {
  root_.write("proc/self/cgroup", "0::/job/step\n");
  root_.write("proc/self/mountinfo", "30 22 0:26 / /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  root_.write("cg/job/memory.max", "500000\n");
  root_.write("cg/job/memory.stat", "file 400000\nanon 200000\n");  // page cache is reclaimable
  root_.write("cg/job/step/memory.max", "max\n");
  root_.write("cg/other/memory.max", "1\n");
  EXPECT_EQ(available(), 300000);
  root_.write("cg/job/step/memory.max", "250000\n");
  root_.write("cg/job/step/memory.stat", "anon 150000\n");
  EXPECT_EQ(available(), 100000);
  root_.write("cg/job/step/memory.stat", "anon 260000\n");
  EXPECT_EQ(available(), 0);
}

TEST_F(HostMemory, TightestLimitOfVersion1Groups) {
  root_.write("proc/self/cgroup", "3:cpu:/c\n4:memory:/job\n");
  root_.write("proc/self/mountinfo", "30 22 0:26 / /cg/memory rw - cgroup cgroup rw,memory\n");
  root_.write("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root_.write("cg/memory/job/memory.limit_in_bytes", "500000\n");
  root_.write("cg/memory/job/memory.stat", "cache 7\nrss 1\ntotal_cache 8\ntotal_rss 100000\n");
  EXPECT_EQ(available(), 400000);
}

TEST_F(HostMemory, IsPositiveForThisProcess) {
  EXPECT_GT(available_host_bytes(), 0);
}

}  // namespace
}  // namespace te
