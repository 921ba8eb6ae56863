// The last operations of one communicator on the device, for the watchdog's line.
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

/// The last operations launched on one communicator, each with an event behind it: the oldest whose event has not come
/// is what the device is in.
class FlightRecorder {
 public:
  /// kept: how many of the last operations.
  explicit FlightRecorder(const Context& context, size_t kept = 64) : entries_(kept) {
    for (Entry& entry : entries_) entry.event.emplace(context);
  }

  void add(const Context& context, const std::string& what) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[count_++ % entries_.size()];
    entry.what = what;
    entry.event->record(context);
  }

  /// "" when all are done.
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
