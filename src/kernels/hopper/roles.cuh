// Roles of a block's threads: two warpgroups are consumers, which compute; single threads of a third are producers,
// which move data.
#pragma once

#include "kernels/common/cuda_common.cuh"
#include "kernels/hopper/ptx.cuh"

namespace te::kernels::hopper {

constexpr int kWarpgroup = 128;  ///< threads
constexpr int kWarps = kWarpgroup / kWarpSize;
constexpr int kConsumers = 2;  ///< consumer warpgroups; the last warpgroup is the producer
constexpr int kConsumerThreads = kConsumers * kWarpgroup;
constexpr int kConsumerWarps = kConsumers * kWarps;
constexpr int kThreads = kConsumerThreads + kWarpgroup;

/// Position of the calling thread in its block.
struct Thread {
  int warpgroup, index, warp, lane;  ///< index and warp are relative to the warpgroup
  __device__ __forceinline__ Thread()
      // The shuffle shows the compiler that the value is uniform in the warp, so that derived values stay in uniform
      // registers.
      : warpgroup(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup, 0)),
        index(static_cast<int>(threadIdx.x) % kWarpgroup),
        warp(index / kWarpSize),
        lane(index % kWarpSize) {}
  __device__ __forceinline__ bool is_producer() const { return warpgroup == kConsumers; }
  /// Row (of the warpgroup's 64) and column of the first accumulator (wgmma.cuh).
  __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
  __device__ __forceinline__ int column() const { return lane % 4 * 2; }
};

/// Lets the consumers run a section alternately, warpgroup 0 first. Uses two named barriers: `first_barrier` and the
/// next.
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
