// Clocks for durations and for the time of day.
#pragma once

#include <chrono>
#include <ctime>

namespace te {

/// Seconds of a monotonic clock with an arbitrary origin.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The time of day in the local time zone, for fmt/chrono.h.
inline std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::localtime_r(&now, &parts);
  return parts;
}

}  // namespace te
