// The last operations of one communicator on the device, for the watchdog's message.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/error.h"

namespace te::parallel {

/// Records an event after each of the last operations launched on a communicator. The oldest operation whose event is
/// not done is the one that the device executes.
class FlightRecorder {
 public:
  /// `kept` is the number of operations to remember.
  explicit FlightRecorder(const Context& context, size_t kept = 64) : entries_(kept) {
    for (Entry& entry : entries_) entry.event.emplace(context);
  }

  void add(const Context& context, const std::string& what) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[count_++ % entries_.size()];
    entry.what = what;
    entry.event->record(context);
  }

  /// Description of the oldest operation that is not done; "" if all are done.
  std::string oldest_pending() {
    const std::lock_guard lock(mutex_);
    const uint64_t kept = std::min<uint64_t>(count_, entries_.size());
    for (uint64_t i = count_ - kept; i < count_; ++i) {
      const Entry& entry = entries_[i % entries_.size()];
      if (!entry.event->done()) return fmt::format("{}, the group's operation {}", entry.what, i + 1);
    }
    return "";
  }

 private:
  struct Entry {
    std::optional<Event> event;
    std::string what;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
  uint64_t count_ = 0;
};

}  // namespace te::parallel
