// Rings of shared-memory stages between a producer and its consumers.
//
//   producer   slot = ring.acquire(cursor)   waits until the stage is empty and may be overwritten
//              ring.commit(slot, bytes)      stage is full after all commits and the bytes of their copies
//   consumer   slot = ring.wait(cursor)      waits until the stage is full and may be read
//              ring.release(slot)            stage is empty after all releases
//
// A wait on an mbarrier takes the parity of a phase; a wait for the wrong phase returns immediately or never. Parities
// are therefore internal: a cursor counts the fills of a ring on the producer's or the consumer's side, and the ring
// derives the phase from it. Commit and release take the slot that the wait for the stage returned. No barrier can
// complete two phases before a waiting thread checks it, because every waiting thread contributes to the next phase: a
// consumer releases the stage or signals (Signal) a thread that does, and the warp of the releasing lane has converged
// after the wait (wgmma, __syncwarp).
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

enum class Side { producer, consumer };

/// Position of a producer or a consumer in a ring. Rings in lockstep may share a cursor.
template <Side kSide, int kStages>
class Cursor {
 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ void next() {
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    if (stage_ == 0) parity_ ^= 1;
  }
  /// Skips fills of another consumer, which has waited for them before this one's next wait (see
  /// OrderedSequenceBarrier).
  __device__ __forceinline__ void skip(int count) {
    stage_ += count;
    parity_ ^= stage_ / kStages % 2;
    stage_ %= kStages;
  }

 private:
  template <int>
  friend class Ring;
  template <int, Side>
  friend class Signal;
  int stage_ = 0, parity_ = 0;
};

/// A stage that a producer (empty) or a consumer (full) may access.
template <Side kSide, int kStages>
class Slot {
 public:
  static __device__ __forceinline__ Slot none() { return Slot(0); }  ///< before the first wait
  __device__ __forceinline__ int stage() const { return stage_; }

 private:
  template <int>
  friend class Ring;
  template <int, Side>
  friend class Signal;
  explicit __device__ __forceinline__ Slot(int stage) : stage_(stage) {}
  int stage_;
};

/// Barriers that consumers of a ring wait for: that a stage is full, or an additional event that is signaled before the
/// stage is released. kBy: the side whose slots commit.
template <int kStages, Side kBy = Side::producer>
class Signal {
 public:
  using Consumer = Cursor<Side::consumer, kStages>;
  using FullSlot = Slot<Side::consumer, kStages>;

  /// Called by one thread, before fence_mbarrier_init and a barrier of the block (or cluster). `commits`: per stage.
  __device__ void init(int commits) {
    for (uint64_t& barrier : full_) mbarrier_init(&barrier, commits);
  }
  __device__ __forceinline__ void commit(Slot<kBy, kStages> slot) { mbarrier_arrive(full(slot)); }
  __device__ __forceinline__ void commit(Slot<kBy, kStages> slot, uint32_t bytes) {
    mbarrier_arrive_expect_tx(full(slot), bytes);
  }
  /// Barrier for the copies that fill the stage.
  __device__ __forceinline__ uint64_t* full(Slot<kBy, kStages> slot) { return &full_[slot.stage()]; }
  __device__ __forceinline__ FullSlot wait(const Consumer& at) {
    mbarrier_wait(&full_[at.stage_], at.parity_);
    return FullSlot(at.stage_);
  }

 private:
  uint64_t full_[kStages];
};

template <int kStages>
class Ring : public Signal<kStages> {
 public:
  using Producer = Cursor<Side::producer, kStages>;
  using EmptySlot = Slot<Side::producer, kStages>;
  using typename Signal<kStages>::FullSlot;

  __device__ void init(int commits, int releases) {
    Signal<kStages>::init(commits);
    for (uint64_t& barrier : empty_) mbarrier_init(&barrier, releases);
  }
  __device__ __forceinline__ EmptySlot acquire(const Producer& at) {
    mbarrier_wait(&empty_[at.stage_], at.parity_ ^ 1);  // returns immediately in the first round
    return EmptySlot(at.stage_);
  }
  __device__ __forceinline__ void release(FullSlot slot) { mbarrier_arrive(&empty_[slot.stage()]); }
  /// Releases a stage to the producer in another block of the cluster.
  __device__ __forceinline__ void release_at(FullSlot slot, int rank) {
    mbarrier_arrive_cluster(&empty_[slot.stage()], rank);
  }

 private:
  uint64_t empty_[kStages];
};

}  // namespace te::kernels::hopper
