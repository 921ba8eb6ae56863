#include "core/cpu_threads.h"

#include <omp.h>
#include <sched.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/control_groups.h"
#include "core/error.h"

namespace te {
namespace {

// ---- wait policy of threads ----

bool is_set(char** environment, const char* name) {
  const size_t length = std::strlen(name);
  for (char** entry = environment; *entry != nullptr; ++entry)
    if (std::strncmp(*entry, name, length) == 0 && (*entry)[length] == '=') return true;
  return false;
}

/// libgomp reads its wait policy from the environment when it is loaded and has no function to set it; OpenBLAS starts
/// a thread per core when it is loaded. Both therefore need their variables before the program starts. This function
/// runs after the libraries are loaded and before they are initialized, so a restart loses no state (MPI, CUDA,
/// OpenBLAS's threads) and is fast. The process keeps its id, arguments, standard files and signal settings. The C
/// library is not initialized either: instead of `environ` the function uses the environment that the loader passes.
void start_with_sleeping_threads(int, char** arguments, char** environment) {
  static char passive[] = "OMP_WAIT_POLICY=passive", one_thread[] = "OPENBLAS_NUM_THREADS=1";
  if (is_set(environment, "OMP_WAIT_POLICY") || is_set(environment, "GOMP_SPINCOUNT")) return;
  // AT_BASE is 0 if the loader was started explicitly (ld.so PROGRAM): /proc/self/exe is then the loader, which does
  // not take these arguments.
  if (::getauxval(AT_BASE) == 0) return;
  static std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return;

  size_t count = 0;
  while (environment[count] != nullptr) ++count;
  auto** extended = static_cast<char**>(std::malloc((count + 3) * sizeof(char*)));
  if (extended == nullptr) return;
  std::copy_n(environment, count, extended);
  extended[count++] = passive;
  if (!is_set(environment, "OPENBLAS_NUM_THREADS")) extended[count++] = one_thread;
  extended[count] = nullptr;
  ::execve(path.data(), arguments, extended);
  // If the restart fails (the program was deleted), continue with spinning threads.
  std::free(extended);
}

using Initializer = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const Initializer first_initializer =
    start_with_sleeping_threads;

constexpr int kMaxCpus = 8192;  // the most that Linux supports

/// CPUs of the group's quota; not positive if it has none. Version 2: cpu.max is "QUOTA PERIOD", or "max" for none.
/// Version 1: cpu.cfs_quota_us (-1 for none) and cpu.cfs_period_us.
double read_quota(const ControlGroup& group) {
  double quota = 0, period = 0;
  if (group.version_2) {
    std::ifstream(group.folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(group.folder + "/cpu.cfs_period_us") >> period;
  }
  return period > 0 ? quota / period : 0;
}

bool any_set(std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [](const char* name) { return std::getenv(name) != nullptr; });
}

}  // namespace

std::vector<CpuQuota> read_cpu_quotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const ControlGroup& group : control_groups(root, "cpu"))
    if (const double cpus = read_quota(group); cpus > 0) quotas.push_back({group.name, cpus});
  return quotas;
}

CpuLimits read_cpu_limits() {
  CpuLimits limits;
  std::array<cpu_set_t, 8> mask{};  // kMaxCpus
  if (::sched_getaffinity(0, sizeof(mask), mask.data()) == 0) {
    for (int cpu = 0; cpu < static_cast<int>(sizeof(mask)) * CHAR_BIT; ++cpu)
      if (CPU_ISSET_S(cpu, sizeof(mask), mask.data())) limits.cpus.push_back(cpu);
  }
  limits.quotas = read_cpu_quotas("");
  return limits;
}

std::string to_text(const CpuLimits& limits) {
  std::ostringstream text;
  for (const int cpu : limits.cpus) text << cpu << ' ';
  for (const CpuQuota& quota : limits.quotas) text << '\n' << quota.cpus << ' ' << quota.group;
  return text.str();
}

CpuLimits cpu_limits_from_text(const std::string& text) {
  CpuLimits limits;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::istringstream cpus(line);
  for (int cpu = 0; cpus >> cpu;) limits.cpus.push_back(cpu);
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    CpuQuota& quota = limits.quotas.emplace_back();
    fields >> quota.cpus;
    std::getline(fields >> std::ws, quota.group);
  }
  return limits;
}

int thread_count(const std::vector<CpuLimits>& processes, size_t self) {
  constexpr double kRounding = 1e-6;
  const CpuLimits& own = processes.at(self);
  const auto users = [&](const auto& uses) {
    return static_cast<double>(std::ranges::count_if(processes, uses));
  };
  double cores = 0;
  for (const int cpu : own.cpus) {
    cores += 1 / users([&](const CpuLimits& other) { return std::ranges::binary_search(other.cpus, cpu); });
  }
  double count = std::max(1.0, std::floor(cores + kRounding));
  for (const CpuQuota& quota : own.quotas) {
    const double sharing = users([&](const CpuLimits& other) {
      return std::ranges::any_of(other.quotas, [&](const CpuQuota& its) { return its.group == quota.group; });
    });
    count = std::min(count, std::max(1.0, std::ceil(quota.cpus / sharing - kRounding)));
  }
  return static_cast<int>(count);
}

int available_threads() {
  return thread_count({read_cpu_limits()}, 0);
}

void use_threads(int count) {
  if (!any_set({"OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"}))
    omp_set_num_threads(count);
  // libgomp ends in a segmentation fault when the threads' stacks do not fit.
  if (const int threads = omp_get_max_threads(); threads > kMaxCpus)
    user_error(
        "OMP_NUM_THREADS: {} threads are more than the {} CPUs that Linux supports; unset it, or set it to "
        "{}",
        threads, kMaxCpus, count);
}

}  // namespace te
