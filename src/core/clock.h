// Clock for measuring durations.
#pragma once

#include <chrono>

namespace te {

/// Seconds of a monotonic clock with an arbitrary origin.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace te
