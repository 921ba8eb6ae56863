#include "core/mapped_region.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>
#include <cerrno>

#include <csignal>
#include <cstring>
#include <mutex>

namespace te {
namespace {

std::atomic<MappedRegion*> first = nullptr;
std::mutex changes;  // for writers of the list; the handler reads it without a lock
struct sigaction before = {};

void on_bus_error(int signal, siginfo_t* info, void*) {
  const MappedRegion* region = MappedRegion::find(info->si_addr);
  if (region == nullptr) {  // not registered: returning repeats the access, now with the previous handler
    ::sigaction(signal, &before, nullptr);
    return;
  }
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, region->message(), std::strlen(region->message()));
  ::_exit(2);
}

void install() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

MappedRegion::MappedRegion(const void* begin, size_t bytes, const std::string& path)
    : begin_(static_cast<const char*>(begin)),
      bytes_(bytes),
      message_(fmt::format(
          "{}: error: {}: became shorter while it was in use, or its disk failed; do not change a file "
          "while a program reads it\n",
          program_invocation_short_name, path)) {
  static std::once_flag installed;
  std::call_once(installed, install);
  const std::lock_guard lock(changes);
  next_ = first.load();
  first = this;
}

MappedRegion::~MappedRegion() {
  const std::lock_guard lock(changes);
  std::atomic<MappedRegion*>* link = &first;
  while (link->load() != this) link = &link->load()->next_;
  *link = next_.load();
}

const MappedRegion* MappedRegion::find(const void* address) {
  const char* at = static_cast<const char*>(address);
  for (const MappedRegion* region = first; region != nullptr; region = region->next_) {
    if (at >= region->begin_ && at - region->begin_ < static_cast<ptrdiff_t>(region->bytes_)) return region;
  }
  return nullptr;
}

}  // namespace te
