// Ends a job that hangs, with one line that says where.
//
// Each rank keeps a slot on a status board that the ranks of a host share: what it does or waits for, of which
// group, and since when. When a wait lasts longer than the timeout, the rank prints the operation, the group's
// ranks and, from the board, who waits with it and where the others were last seen; two seconds later it aborts
// the job with exit code 1. On the CPU every blocking operation watches itself. On a GPU the host waits only where
// it synchronizes, so that wait is put under a Guard, which a thread watches; it also asks NCCL for errors.
// Communicators, activities and guards are used by one thread of a process.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/device.h"

namespace te::parallel {

/// Says what this thread is doing ("forward microbatch 3"), for the watchdog's line; nests. At most 95 bytes are kept.
class ScopedActivity {
 public:
  explicit ScopedActivity(std::string_view text);
  ~ScopedActivity();
  ScopedActivity(const ScopedActivity&) = delete;
  ScopedActivity& operator=(const ScopedActivity&) = delete;

  static constexpr size_t kBytes = 96;
  static const char* current();  ///< "" outside of any

 private:
  std::array<char, kBytes> outer_;
};

class Watchdog {
 public:
  /// Seconds that one wait may last; 0 (the default at start) turns the watchdog off.
  static void set_timeout(double seconds);
  static double timeout();

  /// Watches the host's waits for the device while it lives, as in
  ///   Watchdog::Guard guard(context, "step 12");  context.synchronize();
  /// Its whole life counts as one wait, so it may cover the launches too. Nothing on the CPU. One at a time in a
  /// process; an inner one is ignored.
  class Guard {
   public:
    Guard(const Context& context, std::string_view what);
    /// Watches a wait of the host for something else, on either backend: `what` is "for the disk in step_00000005".
    explicit Guard(std::string_view what);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    bool armed_ = false;
  };

  /// What a communicator tells the watchdog's thread about its device operations.
  struct Report {
    std::string error;    ///< the library's asynchronous error, empty if none: the job is ended at once
    std::string pending;  ///< the oldest operation that the device has not finished, empty if none
  };
  /// Called from the watchdog's thread while a Guard is armed: about once a second with find_pending = false, and
  /// once with true when the timeout has passed. Returns a handle for remove_probe.
  static int add_probe(std::function<Report(bool find_pending)> probe);
  static void remove_probe(int handle);
};

}  // namespace te::parallel
