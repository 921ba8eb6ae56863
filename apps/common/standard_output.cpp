#include "common/standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "core/error.h"

namespace te::apps {

std::string lost_output() {
  const bool before = std::ferror(stdout) != 0;
  errno = 0;
  bool failed = std::fflush(stdout) != 0;
  if (!failed) {  // a network file system may report a full disk only when a file is closed
    const int file = ::dup(STDOUT_FILENO);
    failed = file >= 0 && ::close(file) != 0;
  }
  if (!failed && !before) return "";
  return failed && errno != 0 ? std::generic_category().message(errno) : "an earlier write failed";
}

void check_output() {
  if (const std::string reason = lost_output(); !reason.empty())
    user_error("standard output could not be written and is incomplete: {}", reason);
}

void allow_lost_output(const char* program) {
  const std::string reason = lost_output();
  if (reason.empty()) return;
  std::fprintf(stderr, "%s: warning: standard output is incomplete (%s); the run's files are complete\n",
               program, reason.c_str());
  std::clearerr(stdout);
}

}  // namespace te::apps
