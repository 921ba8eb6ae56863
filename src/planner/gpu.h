// What a GPU and its links do within a training step: the numbers of the cost model, each with where it comes from.
// "Measured" is on H200s, in a step under load, where the power limit holds the clock down; both GPUs of the table have
// the same chip and the same power limit (700 W), and differ in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace te::planner {

struct Gpu {
  std::string_view name;   ///< of --gpu
  std::string_view title;  ///< for people
  int64_t memory_bytes;    ///< that the driver shows
  double copy;             ///< bytes/s of device memory, read and written, by a large copy

  // --- GEMMs: FLOP/s of large ones, and what small ones lose (op_time.h) ---
  double bf16 =
      715e12;  ///< 676 TFLOP/s over the GEMMs of a 7B layer (docs/log/kernels.md) and what these lose
  double fp8 = 1385e12;        ///< 1,300 TFLOP/s, likewise; one scale per tensor
  double fp8_rows = 1100e12;   ///< one scale per row: layers of docs/log/kernels.md, FP8 recipes
  double fp8_blocks = 970e12;  ///< one per 128 values or 128 x 128, likewise
  double tile_depth = 60;      ///< of k, that a tile of 128 x 256 costs besides its own
  double lost_tiles = 44;      ///< a third of a wave of 132 multiprocessors, at the end

  // --- attention: FLOP/s for long sequences (docs/log/kernels.md: 530 us forward, 297 us) ---
  double attention_forward = 590e12;         ///< heads of 128
  double attention_forward_narrow = 430e12;  ///< heads of 64
  double attention_backward = 415e12;        ///< either
  double attention_ramp = 512;               ///< tokens of a sequence that it costs besides its own

  // --- shares of `copy` that passes over memory reach (docs/log/kernels.md, "Where the time of a step goes") ---
  double norm = 0.72, activation = 0.87, cast = 0.80, rope = 0.78, loss = 0.75, optimizer = 1.0, others = 0.8;
  double launch = 1.3e-6;    ///< s between operations (0.5 ms of GPT-2's 100)
  double requantize = 7e-6;  ///< s of the second launch of a delayed cast (docs/log/kernels.md)

  // --- links: bus bandwidth of NCCL's kernels, bytes/s (docs/log/benchmarks.md) ---
  double nvlink = 338e9;          ///< all-gather, reduce-scatter and send of large messages
  double nvlink_latency = 12e-6;  ///< s of one of these; an all-reduce is two
  double network = 42e9;  ///< of a GPU's own 400 Gbit/s adapter (data sheet), 85 %: assumed, not measured
  double network_latency = 25e-6;  ///< assumed
  /// Of the time of a message that travels beside computation on an urgent stream, what it costs it all the same: NCCL
  /// takes multiprocessors (docs/log/benchmarks.md: DP4).
  double overlap_cost = 0.45;
  /// By copy engines: what of the tensor ranks' messages is hidden where GEMMs are cut into as many pieces as there are
  /// ranks, so that the first needs no other rank's tokens, by two ranks (docs/log/kernels.md, "Messages beside
  /// computation") and by four, and what where they are cut into fewer (what four rows of "Copies among four" leave,
  /// docs/log/benchmarks.md). Of more than four ranks it is assumed.
  double copies_hidden_by_two = 0.81, copies_hidden_by_more = 0.65, copies_hidden_in_fewer_pieces = 0.35;
  double copies_overlap_cost = 0.2;  ///< of the time of data ranks' messages beside the passes

  /// Of memory_bytes that no plan may take: CUDA's context (139.2 of 140.4 GiB are free on an H200), and with several
  /// ranks NCCL's buffers (assumed).
  int64_t reserved_bytes(int ranks) const { return (ranks > 1 ? int64_t{3} : int64_t{1}) << 30; }
};

const std::vector<Gpu>& gpus();

/// UserError, with the names that there are, for a name that is none.
const Gpu& gpu_named(std::string_view name);

/// The GPUs of a job: `per_host` on each host, ranks in order.
struct Cluster {
  Gpu gpu;
  int gpus = 1;
  int per_host = 8;
};

/// A group of `ranks` ranks, of which `per_host` share a host.
struct GroupPlacement {
  int ranks = 1;
  int per_host = 1;
};

/// Ranks `stride` apart.
GroupPlacement place_of(const Cluster& cluster, int ranks, int stride);

}  // namespace te::planner
