// Rings of stages in shared memory, from a producer to its consumers and back.
//
//   producer   slot = ring.acquire(cursor)   waits until the stage is empty: it may be overwritten
//              ring.commit(slot, bytes)      full when all have committed, and the bytes of their copies are there
//   consumer   slot = ring.wait(cursor)      waits until the stage is full: it may be read
//              ring.release(slot)            empty again when all have released it
//
// A wait on an mbarrier names the parity of a phase, and one for the wrong phase ends at once, or never. So nobody
// sees parities: a cursor counts the fills of a ring, of the producer's or the consumer's side, and the ring takes the
// phase from it. A stage is committed and released by the slot that the wait for it has returned. A barrier cannot turn
// twice before somebody looks as long as all who wait take part in what leads to the next turn: a consumer releases, or
// tells (Signal) somebody who does; a warp whose lane does so has met after the wait (wgmma, __syncwarp).
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

enum class Side { producer, consumer };

/// At which fill of a ring a producer or a consumer is. Rings in lockstep may share one.
template <Side kSide, int kStages>
class Cursor {
 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ void next() {
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    if (stage_ == 0) parity_ ^= 1;
  }
  /// Past fills that another consumer takes. It has waited for them all before this one's next wait: see
  /// OrderedSequenceBarrier.
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

/// A stage in the hands of a producer (empty) or a consumer (full).
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

/// What consumers of a ring wait for: that a stage is full, or, beside the ring, something more about it, which is told
/// before the stage is released. kBy: whose slots commit.
template <int kStages, Side kBy = Side::producer>
class Signal {
 public:
  using Consumer = Cursor<Side::consumer, kStages>;
  using FullSlot = Slot<Side::consumer, kStages>;

  /// One thread, before fence_mbarrier_init and a barrier of the block (or cluster). `commits`: for a stage.
  __device__ void init(int commits) {
    for (uint64_t& barrier : full_) mbarrier_init(&barrier, commits);
  }
  __device__ __forceinline__ void commit(Slot<kBy, kStages> slot) { mbarrier_arrive(full(slot)); }
  __device__ __forceinline__ void commit(Slot<kBy, kStages> slot, uint32_t bytes) {
    mbarrier_arrive_expect_tx(full(slot), bytes);
  }
  /// When the copies that this thread has asked for (copy_async) are there.
  __device__ __forceinline__ void commit_copies(Slot<kBy, kStages> slot) { copy_async_arrive(full(slot)); }
  /// Told by the copies that fill the stage.
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
    mbarrier_wait(&empty_[at.stage_], at.parity_ ^ 1);  // the first time around at once
    return EmptySlot(at.stage_);
  }
  __device__ __forceinline__ void release(FullSlot slot) { mbarrier_arrive(&empty_[slot.stage()]); }
  /// To the producer in another block of the cluster.
  __device__ __forceinline__ void release_at(FullSlot slot, int rank) {
    mbarrier_arrive_cluster(&empty_[slot.stage()], rank);
  }

 private:
  uint64_t empty_[kStages];
};

}  // namespace te::kernels::hopper
