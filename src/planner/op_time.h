// How long an operation takes on a GPU: from what it has to do (cost/op_cost.h, the one source of FLOPs and bytes) and
// the rates of gpu.h.
//
//   GEMM        FLOPs / rate / (k / (k + tile_depth)) / (tiles / (tiles + lost_tiles)), or its bytes, whichever takes
//               longer; tiles of 128 x 256, k cut into parts where that is faster. An activation within it adds the
//               bytes that it reads and writes.
//   attention   FLOPs / rate / (seq / (seq + attention_ramp))
//   all others  bytes / (share of the copy's bandwidth)
//
// Collectives: latency + what a rank sends at least / bus bandwidth (that of the network where a group is on several
// hosts, times the group's ranks of a host, each with an adapter of its own).
#pragma once

#include "core/profile.h"
#include "planner/gpu.h"

namespace te::planner {

/// Seconds of an operation of one device, launch included. InternalError for a collective.
double op_seconds(const OpCall& call, const Gpu& gpu);

/// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send" or "receive", of so many bytes: the
/// whole tensor, as OpCall counts them. 0 with one rank.
double message_seconds(std::string_view name, double bytes, const GroupPlacement& place, const Gpu& gpu);
bool is_message(const OpCall& call);

/// An operation that casts what several ranks hold parts of waits for an all-reduce of one number.
bool all_reduces_amax(const OpCall& call);

}  // namespace te::planner
