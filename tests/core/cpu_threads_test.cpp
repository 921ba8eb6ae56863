// Number of threads: quotas from fake trees of control groups, and shares of affinity masks and quotas.
#include "core/cpu_threads.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sched.h>

#include <cstdlib>
#include <thread>

#include "core/error.h"
#include "testing/folder_of_files.h"

namespace te {
namespace {

/// A folder that looks like / to read_cpu_quotas.
class FakeRoot : public testing::FolderOfFiles {
 public:
  /// The quotas as "group cpus;group cpus;".
  std::string quotas() const {
    std::string text;
    for (const CpuQuota& quota : read_cpu_quotas(path().string()))
      text += quota.group + " " + std::to_string(quota.cpus).substr(0, 4) + ";";
    return text;
  }
};

constexpr const char* kMounts2 =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kMounts1 =
    "30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 22 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 22 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

TEST(CpuQuotas, Version2WithAncestorGroups) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/system.slice/job.scope/step\n");
  root.write("proc/self/mountinfo", kMounts2);
  root.write("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/system.slice/job.scope/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/system.slice/job.scope/step/cpu.max", "200000 50000\n");
  root.write("sys/fs/cgroup/system.slice/other/cpu.max",
             "1000 100000\n");  // not an ancestor of the process's group
  EXPECT_EQ(root.quotas(), "v2:/system.slice/job.scope/step/ 4.00;v2:/system.slice/job.scope/ 1.50;");
}

TEST(CpuQuotas, ContainerWithItsOwnNamespace) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("proc/self/mountinfo", kMounts2);
  root.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(root.quotas(), "v2:/ 0.50;");
}

TEST(CpuQuotas, Version1) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/a/b\n0::/\n");
  root.write("proc/self/mountinfo", kMounts1);
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.quotas(), "v1:/a/ 2.50;");
}

TEST(CpuQuotas, ContainerWithTheHostsGroupNames) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/docker/0123/inner\n");
  root.write("proc/self/mountinfo",
             "31 22 0:27 /docker/0123 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(root.quotas(), "v1:/docker/0123/inner/ 1.00;v1:/docker/0123/ 3.00;");
  // The process's group is outside the mount's root: only the group at the mount point is visible.
  root.write("proc/self/cgroup", "3:cpu,cpuacct:/docker/0123456\n");
  EXPECT_EQ(root.quotas(), "v1:/docker/0123/ 3.00;");
}

TEST(CpuQuotas, IgnoresUnreadableFiles) {
  const FakeRoot root;
  EXPECT_EQ(root.quotas(), "");
  root.write("proc/self/cgroup", "0::/a\nnonsense\n");
  root.write("proc/self/mountinfo", std::string(kMounts2) + "nonsense\n30 22 0:26 / /x rw - cgroup2\n");
  root.write("sys/fs/cgroup/a/cpu.max", "unreadable\n");
  EXPECT_EQ(root.quotas(), "");
}

CpuLimits cpus(int first, int last, std::vector<CpuQuota> quotas = {}) {
  CpuLimits limits;
  for (int cpu = first; cpu <= last; ++cpu) limits.cpus.push_back(cpu);
  limits.quotas = std::move(quotas);
  return limits;
}

TEST(ThreadCount, OneProcessUsesItsMaskAndAtMostItsSmallestQuotaRoundedUp) {
  EXPECT_EQ(thread_count({cpus(0, 7)}, 0), 8);
  EXPECT_EQ(thread_count({cpus(0, 7, {{"/a/", 3}})}, 0), 3);
  EXPECT_EQ(thread_count({cpus(0, 7, {{"/a/b/", 4}, {"/a/", 1.5}})}, 0), 2);
  EXPECT_EQ(thread_count({cpus(0, 7, {{"/", 0.5}})}, 0), 1);
  EXPECT_EQ(thread_count({cpus(0, 1, {{"/", 16}})}, 0), 2);
  EXPECT_EQ(thread_count({CpuLimits{}}, 0), 1);  // an unreadable mask
}

TEST(ThreadCount, RanksShareTheCommonCpusOfTheirMasks) {
  const std::vector<CpuLimits> unbound(3, cpus(0, 7));
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(thread_count(unbound, rank), 2);
  const std::vector<CpuLimits> bound = {cpus(0, 3), cpus(4, 7)};
  EXPECT_EQ(thread_count(bound, 0), 4);
  EXPECT_EQ(thread_count(bound, 1), 4);
  // Both ranks share CPUs 0 to 3; only the second rank has 4 to 7.
  const std::vector<CpuLimits> nested = {cpus(0, 3), cpus(0, 7)};
  EXPECT_EQ(thread_count(nested, 0), 2);
  EXPECT_EQ(thread_count(nested, 1), 6);
  const std::vector<CpuLimits> crowded(4, cpus(0, 1));
  EXPECT_EQ(thread_count(crowded, 3), 1);
}

TEST(ThreadCount, RanksShareTheQuotasOfCommonGroups) {
  // A job with 8 CPUs; one of its steps is limited to 3.
  const CpuLimits free = cpus(0, 63, {{"/job/b/", 100}, {"/job/", 8}});
  const CpuLimits limited = cpus(0, 63, {{"/job/a/", 3}, {"/job/", 8}});
  EXPECT_EQ(thread_count({free, limited}, 0), 4);
  EXPECT_EQ(thread_count({free, limited}, 1), 3);
  EXPECT_EQ(thread_count({limited, limited}, 0), 2);
}

TEST(ThreadCount, LimitsRoundTripThroughText) {
  const CpuLimits limits = cpus(2, 4, {{"v1:/a group/b/", 1.5}, {"v2:/", 3}});
  const CpuLimits read = cpu_limits_from_text(to_text(limits));
  EXPECT_EQ(read.cpus, limits.cpus);
  ASSERT_EQ(read.quotas.size(), 2U);
  EXPECT_EQ(read.quotas[0].group, "v1:/a group/b/");
  EXPECT_EQ(read.quotas[0].cpus, 1.5);
  EXPECT_EQ(read.quotas[1].group, "v2:/");
  EXPECT_TRUE(cpu_limits_from_text(to_text({})).cpus.empty());
}

TEST(ThreadCount, FollowsTheMaskOfTheProcess) {
  // In a separate thread, so that the changed mask ends with it.
  std::thread([] {
    const std::vector<int> before = read_cpu_limits().cpus;
    ASSERT_FALSE(before.empty());
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(before.back(), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(read_cpu_limits().cpus, std::vector<int>{before.back()});
    EXPECT_EQ(available_threads(), 1);
  }).join();
}

TEST(UseThreads, SetsOpenMpsNumberUnlessTheUserDid) {
  const int before = omp_get_max_threads();
  const char* outer = std::getenv("OMP_NUM_THREADS");
  const std::string kept = outer == nullptr ? "" : outer;
  ::unsetenv("OMP_NUM_THREADS");
  use_threads(3);
  EXPECT_EQ(omp_get_max_threads(), 3);
  ::setenv("OMP_NUM_THREADS", "7", 1);
  use_threads(5);
  EXPECT_EQ(omp_get_max_threads(), 3);
  omp_set_num_threads(100000);  // as OpenMP itself does when it is loaded with this variable
  EXPECT_THROW(use_threads(5), UserError);
  omp_set_num_threads(3);
  ::unsetenv("OMP_NUM_THREADS");
  ::setenv("OMP_PLACES", "cores", 1);
  use_threads(5);
  EXPECT_EQ(omp_get_max_threads(), 3);
  ::unsetenv("OMP_PLACES");
  if (outer != nullptr) ::setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace te
