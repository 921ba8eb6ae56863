// Waiting for another process or thread.
#pragma once

#include <chrono>
#include <thread>

namespace te::testing {

/// Polls every few milliseconds until `condition` holds; false if it does not hold within `limit`. The limit is
/// generous, since tests share the machine: it is for conditions that never hold, not for slow ones.
template <class Condition>
bool eventually(Condition&& condition, std::chrono::seconds limit = std::chrono::seconds(180)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace te::testing
