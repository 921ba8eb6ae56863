// The threads of a block: two warpgroups of consumers, which compute, and one of producers, whose single threads move
// data.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

constexpr int kWarpgroup = 128;  ///< threads
constexpr int kWarps = kWarpgroup / kWarpSize;
constexpr int kConsumers = 2;  ///< warpgroups; the one behind them produces
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarps;
constexpr int kThreads = kConsumerThreads + kWarpgroup;

/// The calling thread.
struct Thread {
  int warpgroup, index, warp, lane;  ///< index and warp are those within the warpgroup
  __device__ __forceinline__ Thread()
      // By a shuffle: so the compiler knows it to be the same in the warp, and keeps what is made of it in uniform
      // registers.
      : warpgroup(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup, 0)),
        index(static_cast<int>(threadIdx.x) % kWarpgroup),
        warp(index / kWarpSize),
        lane(index % kWarpSize) {}
  __device__ __forceinline__ bool is_producer() const { return warpgroup == kConsumers; }
  /// Of its accumulators (wgmma.cuh), the first one's row in the warpgroup's 64 and column.
  __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
  __device__ __forceinline__ int column() const { return lane % 4 * 2; }
};

/// The consumers do something in turn, warpgroup 0 first. Takes two named barriers: `first_barrier` and the next.
class OrderedSequenceBarrier {
 public:
  __device__ __forceinline__ OrderedSequenceBarrier(int first_barrier, int warpgroup)
      : first_barrier_(first_barrier), warpgroup_(warpgroup) {
    if (warpgroup == 1) arrive();
  }
  __device__ __forceinline__ void wait() const {
    named_barrier_sync<kConsumerThreads>(first_barrier_ + warpgroup_);
  }
  __device__ __forceinline__ void arrive() const {
    named_barrier_arrive<kConsumerThreads>(first_barrier_ + 1 - warpgroup_);
  }

 private:
  int first_barrier_, warpgroup_;
};

}  // namespace te::kernels::hopper
