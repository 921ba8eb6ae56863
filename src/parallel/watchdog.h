// Ends a job that hangs, with a message that says where.
//
// Each rank has a slot on a status board in memory that the ranks of a host share. The slot has the rank's current or
// last operation, its group and its time. If a wait exceeds the timeout, the rank prints the operation, the group's
// ranks and, from the board, the operations of the host's other ranks; two seconds later it aborts the job with exit
// code 1. On the CPU every blocking operation checks the time itself. On a GPU the host waits only where it
// synchronizes; a Guard marks this wait, and a thread watches it and polls NCCL for errors. Only one thread of a
// process may use communicators, activities and guards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/device.h"

namespace te::parallel {

/// Names the current activity of this thread ("forward microbatch 3") for the watchdog's message. Activities nest. At
/// most 95 bytes are kept.
class ScopedActivity {
 public:
  explicit ScopedActivity(std::string_view text);
  ~ScopedActivity();
  ScopedActivity(const ScopedActivity&) = delete;
  ScopedActivity& operator=(const ScopedActivity&) = delete;

  static constexpr size_t kBytes = 96;
  static const char* current();  ///< "" without an activity

 private:
  std::array<char, kBytes> outer_;
};

class Watchdog {
 public:
  /// Maximum seconds of a wait; 0 (the initial value) turns the watchdog off.
  static void set_timeout(double seconds);
  static double timeout();

  /// Watches the host's wait for the device, as in
  ///   Watchdog::Guard guard(context, "step 12");  context.synchronize();
  /// The time from construction to destruction counts as one wait, so a guard may also cover launches. It has no effect
  /// on the CPU. A process has at most one guard at a time; a nested one is ignored.
  class Guard {
   public:
    Guard(const Context& context, std::string_view what);
    /// Watches any other wait of the host, also on the CPU; for example `what` is "for the disk in step_00000005".
    explicit Guard(std::string_view what);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    bool armed_ = false;
  };

  /// Waits of this rank have no time limit while it lives: for a wait for other ranks, whose own waits are watched.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    double timeout_;
  };

  /// State of a communicator's device operations.
  struct Report {
    std::string error;    ///< the library's asynchronous error, which ends the job; empty if none
    std::string pending;  ///< the oldest operation that the device has not finished; empty if none
  };
  /// The watchdog's thread calls `probe` while a Guard is armed: about once per second with find_pending = false, and
  /// once with true after the timeout. Returns a handle for remove_probe.
  static int add_probe(std::function<Report(bool find_pending)> probe);
  static void remove_probe(int handle);
};

}  // namespace te::parallel
