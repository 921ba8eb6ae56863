// Rings of stages in shared memory, from a producer to its consumers and back.
//
//   producer   slot = ring.acquire(cursor)   waits until the stage is empty: it may be overwritten
//              ring.commit(slot, bytes)      it is full when all have committed and the bytes of their copies are there
//   consumer   slot = ring.wait(cursor)      waits until it is full: it may be read
//              ring.release(slot)            it is empty again when all have released it
//
// A wait on an mbarrier names the parity of a phase, and one for the wrong phase ends at once, or never. So nobody sees parities:
// a cursor counts the fills of a ring, of the producer's side or the consumer's, and a ring takes the phase from it. A stage is
// committed or released by the slot that the wait for it has returned.
//
// The ring is what keeps a barrier from turning twice before somebody looks, as long as whoever waits also takes part in what
// leads to the next turn. Where one more step is waited for within a fill, it gets a Signal, a barrier for each stage too.
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

enum class Side { producer, consumer };

/// Where a producer or a consumer is: at which fill of the ring. Rings in lockstep may share one.
template <Side kSide, int kStages>
class Cursor {
 public:
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ void next() {
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    if (stage_ == 0) parity_ ^= 1;
  }
  /// Past fills that another consumer takes. It has waited for them all before this one's next wait: see Turns.
  __device__ __forceinline__ void skip(int count) {
    stage_ += count;
    parity_ ^= stage_ / kStages % 2;
    stage_ %= kStages;
  }

 private:
  template <int>
  friend class Ring;
  template <int>
  friend class Signal;

  int stage_ = 0, parity_ = 0;
};

/// A stage in the hands of a producer (empty) or a consumer (full).
template <Side kSide, int kStages>
class Slot {
 public:
  static __device__ __forceinline__ Slot none() { return Slot(0); }
  __device__ __forceinline__ int stage() const { return stage_; }

 private:
  template <int>
  friend class Ring;
  explicit __device__ __forceinline__ Slot(int stage) : stage_(stage) {}

  int stage_;
};

template <int kStages>
class Ring {
 public:
  using Producer = Cursor<Side::producer, kStages>;
  using Consumer = Cursor<Side::consumer, kStages>;
  using EmptySlot = Slot<Side::producer, kStages>;
  using FullSlot = Slot<Side::consumer, kStages>;

  /// One thread, before fence_mbarrier_init and a barrier of the block (or cluster): how many commit a stage, and release it.
  __device__ void init(int commits, int releases) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full_[i], commits);
      mbarrier_init(&empty_[i], releases);
    }
  }

  __device__ __forceinline__ EmptySlot acquire(const Producer& at) {
    mbarrier_wait(&empty_[at.stage_], at.parity_ ^ 1);  // the first time around at once
    return EmptySlot(at.stage_);
  }
  __device__ __forceinline__ void commit(EmptySlot slot) { mbarrier_arrive(&full_[slot.stage()]); }
  __device__ __forceinline__ void commit(EmptySlot slot, uint32_t bytes) {
    mbarrier_arrive_expect_tx(&full_[slot.stage()], bytes);
  }
  /// Told by the copies that fill the stage.
  __device__ __forceinline__ uint64_t* full(EmptySlot slot) { return &full_[slot.stage()]; }

  __device__ __forceinline__ FullSlot wait(const Consumer& at) {
    mbarrier_wait(&full_[at.stage_], at.parity_);
    return FullSlot(at.stage_);
  }
  __device__ __forceinline__ void release(FullSlot slot) { mbarrier_arrive(&empty_[slot.stage()]); }
  /// To the producer in another block of the cluster.
  __device__ __forceinline__ void release_at(FullSlot slot, int rank) {
    mbarrier_arrive_cluster(&empty_[slot.stage()], rank);
  }

 private:
  uint64_t full_[kStages], empty_[kStages];
};

/// Something more about a stage of a ring, told by whoever holds its slot, between commit and release; those who wait for it
/// wait before the stage is released.
template <int kStages>
class Signal {
 public:
  __device__ void init(int commits) {
    for (uint64_t& barrier : told_) mbarrier_init(&barrier, commits);
  }
  template <Side kSide>
  __device__ __forceinline__ void commit(Slot<kSide, kStages> slot) {
    mbarrier_arrive(&told_[slot.stage()]);
  }
  template <Side kSide>
  __device__ __forceinline__ void commit(Slot<kSide, kStages> slot, uint32_t bytes) {
    mbarrier_arrive_expect_tx(&told_[slot.stage()], bytes);
  }
  template <Side kSide>
  __device__ __forceinline__ uint64_t* full(Slot<kSide, kStages> slot) {
    return &told_[slot.stage()];
  }
  __device__ __forceinline__ void wait(const Cursor<Side::consumer, kStages>& at) {
    mbarrier_wait(&told_[at.stage_], at.parity_);
  }

 private:
  uint64_t told_[kStages];
};

}  // namespace te::kernels::hopper
