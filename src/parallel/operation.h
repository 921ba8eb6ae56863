// The watchdog's side that communicators and World see: the record of one blocking or launched operation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/watchdog.h"

namespace te::parallel {

/// "0, 1, 4"
std::string list_ranks(const std::vector<int>& ranks);

/// Lives while a thread is inside an operation. Writes its beginning and its end to the status board. On a GPU it is a
/// Guard too, since NCCL may make a launch wait for the peers.
class Operation {
 public:
  Operation(const char* name, const Communicator& group, const Context& context);
  /// On the host. The arguments must outlive it. ranks: world ranks of the group.
  Operation(const char* name, const std::string& group, const std::vector<int>& ranks);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// To be called while waiting; ends the job when the wait has passed the watchdog's timeout.
  static void check_current();
  /// "all_reduce of tensor (ranks 0, 1)", or "" outside of any.
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

/// Moves this rank to slot `slot` of a board in shared memory (StatusBoard::bytes(slots), zeroed).
void attach_board(void* memory, int slots, int slot, int world_rank);
/// Back to a board of its own, before the shared memory goes; stops the thread.
void detach_board();

/// What a Guard does, for a wait "for the device in WHAT" or for one that names what it is for. Armable: the watchdog
/// is on and no guard is up.
bool armable();
bool arm(std::string_view what);
bool arm_for(std::string_view wait);
void disarm();

}  // namespace watchdog
}  // namespace te::parallel
