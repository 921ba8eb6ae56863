// Interface between the watchdog and communicators or World: the record of a blocking or launched operation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/watchdog.h"

namespace te::parallel {

/// "0, 1, 4"
std::string list_ranks(const std::vector<int>& ranks);

/// Exists while a thread is inside an operation, and writes begin and end of the operation to the status board. On a
/// GPU it is also a Guard because NCCL may block in a launch until the peers launch, too.
class Operation {
 public:
  Operation(const char* name, const Communicator& group, const Context& context);
  /// An operation on the host. `ranks` are world ranks of the group. The arguments must outlive the object.
  Operation(const char* name, const std::string& group, const std::vector<int>& ranks);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// Call this while waiting: ends the job if the wait exceeds the watchdog's timeout.
  static void check_current();
  /// "all_reduce of tensor (ranks 0, 1)", or "" outside of operations.
  static std::string describe_current();

 private:
  void publish(bool waiting) const;
  const char* name_;
  const std::string& group_;
  const std::vector<int>& ranks_;
  int64_t since_ns_;
  Operation* outer_;
  bool armed_ = false;
};

namespace watchdog {

/// Moves this rank's status to slot `slot` of a board in shared memory (StatusBoard::bytes(slots), zeroed).
void attach_board(void* memory, int slots, int slot, int world_rank);
/// Returns to a private board, before the shared memory is freed, and stops the watchdog's thread.
void detach_board();

/// Implementation of Guard. arm() is for a wait "for the device in WHAT", arm_for() for any other wait. armable(): the
/// watchdog is on and there is no guard.
bool armable();
bool arm(std::string_view what);
bool arm_for(std::string_view wait);
void disarm();

}  // namespace watchdog
}  // namespace te::parallel
