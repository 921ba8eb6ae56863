#include "core/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "core/control_groups.h"

namespace te {
namespace {

constexpr int64_t kNoMemoryLimit = std::numeric_limits<int64_t>::max();

/// The number after `key` in a file of "key number" lines, else `fallback`.
int64_t number_after(const std::string& path, const std::string& key, int64_t fallback) {
  std::ifstream in(path);
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return fallback;
}

int64_t first_number(const std::string& path, int64_t fallback) {
  std::ifstream in(path);
  int64_t value = 0;
  return in >> value ? value : fallback;  // the file may have "max" instead of a number
}

/// Bytes below the limit that are left for processes of the group and its descendants.
int64_t left_in(const ControlGroup& group) {
  const std::string limit_file = group.version_2 ? "/memory.max" : "/memory.limit_in_bytes";
  const int64_t limit = first_number(group.folder + limit_file, kNoMemoryLimit);
  const int64_t used = number_after(group.folder + "/memory.stat", group.version_2 ? "anon" : "total_rss", 0);
  return limit == kNoMemoryLimit ? limit : std::max<int64_t>(0, limit - used);
}

}  // namespace

int64_t available_host_bytes(const std::string& root) {
  const int64_t kilobytes = number_after(root + "/proc/meminfo", "MemAvailable:", -1);
  int64_t available = kilobytes < 0 ? kNoMemoryLimit : kilobytes * 1024;
  for (const ControlGroup& group : control_groups(root, "memory"))
    available = std::min(available, left_in(group));
  return available;
}

}  // namespace te
