// Number of threads of this process, and how they wait.
//
// A process may have fewer cores than its host: because of its affinity mask, of the CPU quota of a control group (a
// container), or of other ranks on the host. OpenMP considers only the mask. If cores are shared, OpenMP's spinning
// threads also take time from threads that have work, which slows a run down severely. Executables that call
// use_threads() therefore let waiting threads sleep: they restart themselves with OMP_WAIT_POLICY=passive and
// OPENBLAS_NUM_THREADS=1, because libraries read these variables when they are loaded (see cpu_threads.cpp). Variables
// that the user sets take precedence: with OMP_WAIT_POLICY or GOMP_SPINCOUNT the process does not restart, and with
// OMP_NUM_THREADS or the variables for thread placement OpenMP's number of threads stays.
#pragma once

#include <string>
#include <vector>

namespace te {

/// CPU quota of a control group: CPU seconds per second for all its processes together.
struct CpuQuota {
  std::string group;  ///< unique on this host
  double cpus = 0;
};

/// CPUs of the host that a process may use.
struct CpuLimits {
  std::vector<int> cpus;         ///< its affinity mask, ascending
  std::vector<CpuQuota> quotas;  ///< quotas of its control group and that group's ancestors
};

/// This process's limits.
CpuLimits read_cpu_limits();
/// The quotas in the files below `root`: proc/self/cgroup, proc/self/mountinfo and the control groups, version 1 or 2,
/// at the mount points named there. Files that cannot be read are ignored.
std::vector<CpuQuota> read_cpu_quotas(const std::string& root);

/// Serializes limits for the other ranks of the host, and parses them.
std::string to_text(const CpuLimits& limits);
CpuLimits cpu_limits_from_text(const std::string& text);

/// Number of threads for process `self`, given the limits of all processes of a job on its host. The process gets its
/// share of each CPU in its mask (1 / number of processes whose masks contain it), summed and rounded down; at most its
/// share of every quota, rounded up; at least one.
int thread_count(const std::vector<CpuLimits>& processes, size_t self);

/// thread_count of this process alone.
int available_threads();

/// Makes OpenMP use `count` threads, unless OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set.
/// UserError if those give more threads than Linux supports CPUs.
/// An executable that links this function also restarts itself so that waiting threads sleep (see above).
void use_threads(int count);

}  // namespace te
