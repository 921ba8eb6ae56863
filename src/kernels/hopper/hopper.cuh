// The core of the kernels for Hopper: attention (kernels/attention/flash_*) and GEMMs with activations (kernels/gemm).
//
// A kernel on the core is persistent and warp-specialized. Its block is two consumer warpgroups, which compute, and a producer
// warpgroup, of which single threads move data with TMA. Tiles pass between them through rings of shared memory:
//
//   struct Shared {
//     __nv_bfloat16 a[kStages][128 * 64], b[kStages][128 * 64];   // one full tile of TMA each, 128-byte swizzle (tile.cuh)
//     Ring<kStages> operands;                                     // who may touch a stage, and when (ring.cuh)
//   };
//   __device__ void load(Shared& s, const CUtensorMap& a, const CUtensorMap& b, int depth) {           // a role: one thread
//     Ring<kStages>::Producer cursor;
//     for (int k = 0; k < depth; k += 64, cursor.next()) {
//       const auto slot = s.operands.acquire(cursor);             // waits until consumers have released the stage
//       s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
//       tma_load(s.a[slot.stage()], &a, s.operands.full(slot), k, 0, 0);
//       tma_load(s.b[slot.stage()], &b, s.operands.full(slot), k, 0, 0);
//     }
//   }
//   __device__ void compute(Shared& s, int depth, const Thread& thread) {                              // a role: a warpgroup
//     float d[64] = {};                                           // its 64 x 128 of the result
//     Ring<kStages>::Consumer cursor;
//     for (int k = 0; k < depth; k += 64, cursor.next()) {        // main loop
//       const auto slot = s.operands.wait(cursor);
//       wgmma_fence();
//       mma_nt<128, 64>(d, shared_address(s.a[slot.stage()]) + thread.warpgroup * kWarpgroupTileBytes, 0,
//                       shared_address(s.b[slot.stage()]), 0, true);
//       wgmma_commit();
//       wgmma_wait<0>(d);
//       if (thread.lane == 0) s.operands.release(slot);
//     }
//     ...                                                         // epilogue: store_accumulators, tma_store
//   }
//
// The __global__ initializes the rings, moves registers to the consumers, and calls a role (roles.cuh). launch_persistent starts
// as many blocks, or clusters of them, as run at a time (launch.h); a scheduler of the kernel's own deals out its work.
//
//   ptx.cuh    one function for each instruction        ring.cuh   stages in shared memory, full and empty
//   wgmma.cuh  GEMMs of a warpgroup                     tile.cuh   swizzle, stmatrix, descriptors of operands
//   roles.cuh  the threads of a block, their turns      launch.h, tensor_map.h   the host's side
#pragma once

#include "kernels/hopper/ptx.cuh"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/roles.cuh"
#include "kernels/hopper/tile.cuh"
#include "kernels/hopper/wgmma.cuh"
