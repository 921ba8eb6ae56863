#include "checkpoint/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace te::checkpoint {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

/// The number after `key` in a file of "key number" lines; `fallback` where there is none.
int64_t number_after(const char* path, const std::string& key, int64_t fallback) {
  std::ifstream in(path);
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return fallback;
}

int64_t first_number(const char* path, int64_t fallback) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? value : fallback;  // "max" is no number
}

}  // namespace

int64_t available_host_bytes() {
  const int64_t kilobytes = number_after("/proc/meminfo", "MemAvailable:", -1);
  const int64_t system = kilobytes < 0 ? kUnknown : kilobytes * 1024;
  const int64_t limit = first_number("/sys/fs/cgroup/memory.max", kUnknown);
  if (limit == kUnknown) return system;
  const int64_t used = number_after("/sys/fs/cgroup/memory.stat", "anon", 0);
  return std::min(system, std::max<int64_t>(0, limit - used));
}

}  // namespace te::checkpoint
