// Current operation of each rank of a host, in shared memory, so that the watchdog of one rank can report the others.
// Each slot has one writer; a reader retries if it sees a write in progress (seqlock).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace te::parallel {

struct Status {
  int32_t rank = -1;      ///< world rank; -1 if the slot was never written
  int32_t waiting = 0;    ///< 1 inside the operation, 0 after it
  uint64_t sequence = 0;  ///< number of operations that the rank has started
  /// When the rank entered or left the operation, on the steady clock, which is the same for all processes of a host.
  int64_t since_ns = 0;
  int64_t seen_ns = 0;           ///< last poll while the rank waits on the CPU
  int64_t guarded_since_ns = 0;  ///< when a Guard was armed; 0 if none is
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
  /// `memory` is zeroed, 64-byte aligned and shared by all users of the board. It must outlive the board.
  StatusBoard(void* memory, int slots);

  int slots() const { return slots_; }
  void publish(int slot, const Status& status);
  Status read(int slot) const;
  /// True only for the first call in all processes.
  bool claim_report();
  /// A process ends the job. Both functions are safe in signal handlers.
  void announce_end() { header_->ending = 1; }
  bool ending() const { return header_->ending != 0; }

 private:
  static constexpr size_t kWords = sizeof(Status) / sizeof(uint64_t);
  using Words = std::array<uint64_t, kWords>;
  // All-zero bytes are a valid state, so these need no construction in shared memory.
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
