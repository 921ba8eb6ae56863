#include "core/address_space.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>

#include "core/file.h"

namespace te {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Bytes of the entry "KEY: N kB" in /proc/self/status.
int64_t used(const std::string& status, const std::string& key) {
  const size_t at = status.find("\n" + key + ":");
  int64_t kilobytes = 0;
  if (at != std::string::npos) std::istringstream(status.substr(at + key.size() + 2)) >> kilobytes;
  return kilobytes * 1024;
}

}  // namespace

int64_t free_address_space() {
  struct Limit {
    decltype(RLIMIT_AS) resource;
    const char* key;
  };
  int64_t left = kUnlimited;
  std::string status;
  for (const Limit& limit : {Limit{RLIMIT_AS, "VmSize"}, Limit{RLIMIT_DATA, "VmData"}}) {
    struct rlimit value = {};
    if (::getrlimit(limit.resource, &value) != 0 || value.rlim_cur > static_cast<rlim_t>(kUnlimited))
      continue;
    if (status.empty()) status = read_file("/proc/self/status").text;
    left =
        std::min(left, std::max<int64_t>(0, static_cast<int64_t>(value.rlim_cur) - used(status, limit.key)));
  }
  return left;
}

}  // namespace te
