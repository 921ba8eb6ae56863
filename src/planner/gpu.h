// Rates of a GPU and its links in a training step: the parameters of the cost model, each with its source. "Measured"
// means on H200s in a step under load, where the power limit lowers the clock. H100 and H200 have the same chip and
// power limit (700 W) and differ in memory. Rates of other GPUs are assumed: the same fractions of their peak rates
// (core/gpu_models.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace te::planner {

/// FLOP/s of the grouped GEMMs of experts.
struct GroupedRates {
  double fprop, dgrad, wgrad;
};

struct Gpu {
  std::string_view name;   ///< value of --gpu
  std::string_view title;  ///< full name
  int64_t memory_bytes;    ///< as shown by the driver
  double copy;             ///< bytes/s of a large device copy, read and written
  int sm = 90;             ///< 10 * major + minor of the compute capability

  // --- GEMMs: FLOP/s of large ones, and the overheads of small ones (op_time.h) ---
  double bf16 = 715e12;       ///< measured with the GEMMs of a 7B layer (docs/log/kernels.md), plus overheads
  double fp8 = 1385e12;       ///< likewise; one scale per tensor
  double fp8_rows = 1100e12;  ///< one scale per row (docs/log/kernels.md, FP8 recipes)
  double fp8_blocks = 970e12;  ///< one scale per 128 or 128 x 128 values, likewise
  double tile_depth = 60;      ///< overhead of a 128 x 256 tile, in units of k
  double lost_tiles = 44;      ///< tail effect: a third of a wave of 132 SMs

  // --- grouped GEMMs of OLMoE, Mixtral and Qwen3-30B-A3B (docs/log/kernels.md, "Peers of Mixtral's experts") ---
  GroupedRates grouped_bf16{690e12, 650e12, 715e12}, grouped_fp8{1330e12, 1110e12, 1030e12},
      grouped_fp8_blocks{1110e12, 1110e12, 800e12};
  /// Part of the time of the FP32 or BF16 sums of wgrad, at `copy`, that is not hidden.
  double grouped_sums = 0.5;

  // --- attention: FLOP/s for long sequences (docs/log/kernels.md) ---
  double attention_forward = 590e12;         ///< head size 128
  double attention_forward_narrow = 430e12;  ///< head size 64
  double attention_backward = 435e12;        ///< both
  /// Tail effect of the backward pass, in tasks of 128 keys of a sample and key-value head: a group's heads share a
  /// task, so 8 groups of one sequence have a quarter of the tasks of 32 (fitted to Llama 3.1 8B, measured_test.cpp).
  double lost_attention_tasks = 100;
  double attention_ramp = 512;  ///< overhead per sequence, in tokens

  // --- fractions of `copy` that memory-bound ops reach (docs/log/kernels.md, "Where the time of a step goes") ---
  double norm = 0.72, activation = 0.87, quantize = 0.80, rope = 0.78, loss = 0.75, optimizer = 1.0,
         others = 0.8;
  double quantize_tokens = 0.55;  ///< experts' rows from the tokens ("Results of grouped GEMMs")
  double router_gradient = 0.29,
         router = 0.03;      ///< router_gemm_backward; other operations of the router, likewise
  double launch = 1.3e-6;    ///< s between operations (docs/log/kernels.md)
  double requantize = 7e-6;  ///< s of the second launch of delayed scaling (docs/log/kernels.md)

  // --- links: bus bandwidth of NCCL's kernels, bytes/s (docs/log/benchmarks.md) ---
  double nvlink = 338e9;          ///< large all-gather, reduce-scatter and send
  double nvlink_latency = 12e-6;  ///< s per operation; an all-reduce counts as two
  double network = 42e9;          ///< 85% of a 400 Gbit/s adapter per GPU (data sheet): assumed, not measured
  double network_latency = 25e-6;  ///< assumed
  /// Cost of overlapped communication to computation, as a fraction of its time: NCCL uses SMs (docs/log/benchmarks.md:
  /// DP4).
  double overlap_cost = 0.45;
  /// Cost of a message between pipeline stages to each of the two, as a multiple of its time: NCCL's kernels use SMs
  /// while they wait for each other (docs/log/benchmarks.md: virtual stages, NCCL and copies; 1.9 to 4.9).
  double message_cost = 3.0;
  /// Copy engines: the fraction of tensor-parallel communication that is hidden. With one GEMM chunk per rank, the
  /// first chunk needs no communication: two ranks ("Communication next to computation", docs/log/kernels.md), four.
  /// With fewer chunks than ranks: derived from four rows of "Copies among four" (docs/log/benchmarks.md). Assumed for
  /// more than four ranks.
  double copies_hidden_by_two = 0.81, copies_hidden_by_more = 0.65, copies_hidden_in_fewer_chunks = 0.35;

  /// Part of memory_bytes that no plan may use: CUDA's context (139.2 of 140.4 GiB are free on an H200), and NCCL's
  /// buffers with several ranks (assumed).
  int64_t reserved_bytes(int ranks) const { return (ranks > 1 ? int64_t{3} : int64_t{1}) << 30; }
};

const std::vector<Gpu>& gpus();

/// UserError, with the known names, for an unknown name.
const Gpu& gpu_named(std::string_view name);

/// The GPUs of a job: `per_host` on each host, ranks in order.
struct Cluster {
  Gpu gpu;
  int gpus = 1;
  int per_host = 8;
};

/// A group of `ranks` ranks, `per_host` of them on each host.
struct GroupPlacement {
  int ranks = 1;
  int per_host = 1;
};

/// The placement of a group whose ranks are `stride` apart.
GroupPlacement place_of(const Cluster& cluster, int ranks, int stride);

}  // namespace te::planner
