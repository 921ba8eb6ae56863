// Core of the Hopper kernels: attention (kernels/attention/flash_*) and GEMMs with activations (kernels/gemm).
//
// Kernels built on it are persistent and warp-specialized. Two of a block's three warpgroups are consumers, which
// compute; single threads of the third are producers, which move data. Tiles pass between them through rings of stages
// in shared memory.
//
//   struct Shared {
//     __nv_bfloat16 a[kStages][128 * 64], b[kStages][128 * 64];  // tiles as TMA writes and wgmma reads them (tile.cuh)
//     Ring<kStages> operands;                                    // who may touch a stage, and when (ring.cuh)
//   };
//   __device__ void load(Shared& s, const CUtensorMap& a, const CUtensorMap& b, int depth) {   // a role: one thread
//     Ring<kStages>::Producer at;
//     for (int k = 0; k < depth; k += 64, at.next()) {
//       const auto slot = s.operands.acquire(at);                // waits until consumers have released the stage
//       s.operands.commit(slot, sizeof(s.a[0]) + sizeof(s.b[0]));
//       tma_load(s.a[slot.stage()], &a, s.operands.full(slot), k, 0, 0);
//       tma_load(s.b[slot.stage()], &b, s.operands.full(slot), k, 0, 0);
//     }
//   }
//   __device__ void compute(Shared& s, int depth, const Thread& thread) {                      // a role: a warpgroup
//     float d[64] = {};                                          // its 64 x 128 of the result (wgmma.cuh)
//     Ring<kStages>::Consumer at;
//     for (int k = 0; k < depth; k += 64, at.next()) {           // main loop
//       const auto slot = s.operands.wait(at);
//       wgmma_fence();
//       mma_nt<128, 64>(d, stage_address(s.a, slot.stage()) + thread.warpgroup * kWarpgroupTileBytes, 0,
//                       stage_address(s.b, slot.stage()), 0, true);
//       wgmma_commit();
//       wgmma_wait<0>(d);
//       if (thread.lane == 0) s.operands.release(slot);
//     }
//     ...                                                        // epilogue: store_accumulators, tma_store
//   }
//
// The __global__ function initializes the rings, reassigns registers to the consumers and calls the roles (roles.cuh).
// launch_persistent (launch.h) starts as many blocks or clusters as can be resident. Tensor maps: tensor_map.h.
#pragma once

#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tile_scheduler.cuh"
#include "kernels/hopper/wgmma.cuh"
