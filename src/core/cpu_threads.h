// How many threads this process should use, and how they wait.
//
// A process may have fewer cores than its host: by its affinity mask, by the CPU quota of a control group (a
// container), or because several ranks share the host. OpenMP knows the mask alone. And where cores are shared,
// OpenMP's way to wait by spinning takes them from those who have work: a run falls to a tenth of its speed.
// Executables that call use_threads() therefore let waiting threads sleep: they start themselves anew with
// OMP_WAIT_POLICY=passive and OPENBLAS_NUM_THREADS=1, since libraries read these when they are loaded (cpu_threads.cpp
// has the details). Variables that the user sets win: OMP_WAIT_POLICY or GOMP_SPINCOUNT keeps the process as it was
// started, OMP_NUM_THREADS and the variables of placement keep OpenMP's number of threads.
#pragma once

#include <string>
#include <vector>

namespace te {

/// A control group with a quota: its processes together get this much time of CPUs per second.
struct CpuQuota {
  std::string group;  ///< names the group on this host
  double cpus = 0;
};

/// What a process may use of its host's CPUs.
struct CpuLimits {
  std::vector<int> cpus;         ///< its affinity mask, ascending
  std::vector<CpuQuota> quotas;  ///< of its control group and those above it, where they have one
};

/// This process's limits.
CpuLimits read_cpu_limits();
/// The quotas that the files below `root` describe: proc/self/cgroup, proc/self/mountinfo and the control groups,
/// version 1 or 2, at the mount points named there. What cannot be read limits nothing.
std::vector<CpuQuota> read_cpu_quotas(const std::string& root);

/// Limits as text, for the other ranks of a host, and back.
std::string to_text(const CpuLimits& limits);
CpuLimits cpu_limits_from_text(const std::string& text);

/// How many threads process `self` should use, given the limits of all processes of a job on its host: its share of the
/// CPUs in its mask, each divided by the processes whose masks have it, rounded down; at most its share of every quota,
/// rounded up; at least one.
int thread_count(const std::vector<CpuLimits>& processes, size_t self);

/// thread_count of this process alone.
int available_threads();

/// Makes OpenMP use `count` threads, unless OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set.
/// Linking this function in also chooses how threads wait (see above).
void use_threads(int count);

}  // namespace te
