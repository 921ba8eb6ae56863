// What each rank of a host does now, in memory that they share: the watchdog of one rank reads there where the others
// are. A slot has one writer; a reader that meets a write in progress tries again.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace te::parallel {

struct Status {
  int32_t rank = -1;      ///< in the world; -1: the slot was never written
  int32_t waiting = 0;    ///< 1 inside the operation, 0 after it
  uint64_t sequence = 0;  ///< operations that the rank has begun
  int64_t since_ns =
      0;  ///< when it entered or left the operation; steady clock, which a host's processes share
  int64_t seen_ns = 0;           ///< while waiting on the CPU: when it last looked whether its wait is over
  int64_t guarded_since_ns = 0;  ///< when a Guard was set up; 0: none
  char operation[32] = {};
  char group[48] = {};
  char guard[56] = {};
  char activity[96] = {};
};
static_assert(sizeof(Status) % sizeof(uint64_t) == 0);

class StatusBoard {
 public:
  static constexpr size_t bytes(int slots) {
    return sizeof(Header) + sizeof(Slot) * static_cast<size_t>(slots);
  }
  /// `memory`: zeroed, 64-byte aligned, shared by all who use the board; it must outlive it.
  StatusBoard(void* memory, int slots);

  int slots() const { return slots_; }
  void publish(int slot, const Status& status);
  Status read(int slot) const;
  /// True for the first caller of all processes.
  bool claim_report();
  /// One of the processes ends the job. Both may be called by signal handlers.
  void announce_end() { header_->ending = 1; }
  bool ending() const { return header_->ending != 0; }

 private:
  static constexpr size_t kWords = sizeof(Status) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;
  // All-zero bytes are a valid state, so nobody has to construct these in shared memory first.
  struct alignas(64) Header {
    std::atomic<uint32_t> claimed, ending;
  };
  struct alignas(64) Slot {
    std::atomic<uint64_t> version;  ///< odd while the slot is written
    std::array<std::atomic<uint64_t>, kWords> words;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  Header* header_;
  Slot* slot_;
  int slots_;
};

}  // namespace te::parallel
