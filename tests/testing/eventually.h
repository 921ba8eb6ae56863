// Waiting for what another process or thread does.
#pragma once

#include <chrono>
#include <thread>

namespace te::testing {

/// Looks every few milliseconds until `condition` holds; false where it does not within `limit`. The limit is generous,
/// since tests share their machine: it is there for what never happens, not for what is slow.
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
