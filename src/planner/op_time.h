// Predicts the time of an operation on a GPU from its FLOPs and bytes (cost/op_cost.h, their only source) and the rates
// of gpu.h.
//
//   GEMM        FLOPs / rate / (k / (k + tile_depth)) / (tiles / (tiles + lost_tiles)), or its bytes, whichever takes
//               longer; tiles of 128 x 256, split-K if that is faster. A fused activation adds the bytes that it reads
//               and writes.
//   experts     grouped GEMMs: FLOPs / rate of the pass; wgrad: plus a part of the time of reading and writing sums
//   attention   FLOPs / rate / (seq / (seq + attention_ramp))
//   all others  bytes / (fraction of the copy bandwidth)
//
// Collectives: latency + minimum bytes sent per rank / bus bandwidth. If a group spans hosts, the bandwidth is that of
// the network, times the group's ranks per host, each with its own adapter, and at most NVLink's.
#pragma once

#include "core/profile.h"
#include "planner/gpu.h"

namespace te::planner {

/// Seconds of an operation on one device, including the launch. InternalError for a collective.
double op_seconds(const OpCall& call, const Gpu& gpu);

/// Seconds of "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send" or "receive". `bytes`: of
/// the full tensor, as OpCall counts them. 0 with one rank.
double communication_seconds(std::string_view name, double bytes, const GroupPlacement& place,
                             const Gpu& gpu);
bool is_communication(const OpCall& call);

/// Whether the operation quantizes a tensor that is sharded across ranks, and so waits for an all-reduce of its amax.
bool all_reduces_amax(const OpCall& call);

}  // namespace te::planner
