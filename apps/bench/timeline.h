// --timeline of te-bench step: every operation of a profiled step as trace events for Perfetto (ui.perfetto.dev),
// chrome://tracing and scripts/plot_timeline.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/world.h"

namespace te::bench {

/// The role of an operation when communication overlap is computed.
enum class OpRole : uint8_t {
  computes,       ///< kernels, and copies and fills in the device's memory
  communication,  ///< collectives, sends and receives, and sums of data that ranks have copied to each other
  neither,        ///< offload copies from and to the host, and waits for them
};

/// One operation of a profiled run.
struct TimedOperation {
  std::string kind;   ///< the profile's group: "GEMMs", "attention", "communication" ...
  std::string name;   ///< "gemm", "all_gather"
  std::string label;  ///< "linear_fc1 fprop", or empty
  std::string group;  ///< of communication: the ranks' group ("tensor", "data" ...)
  OpRole role = OpRole::computes;
  int stream = 0;       ///< CUDA stream; 0: the step's, others in the order of their first operation
  double start_ms = 0;  ///< relative to the start of the run's first operation on this rank
  double ms = 0;
  double flops = 0, bytes = 0;

  double end_ms() const { return start_ms + ms; }
};

/// One rank's events as JSON objects separated by commas, one per line: the names of the rank (a process) and of its
/// CUDA streams (threads), then the operations as complete events with times in microseconds.
std::string trace_events(const std::vector<TimedOperation>& operations, int rank);

/// UserError unless the file can be written; called before the step is timed.
void check_timeline(const std::string& path);

/// Rank 0 writes the events of all ranks in order. Time 0 of each rank is the start of its own first operation, since
/// the devices have no common clock. Collective. UserError if the file cannot be written.
void write_timeline(const std::string& path, const std::string& title,
                    const std::vector<TimedOperation>& operations, parallel::World& world);

}  // namespace te::bench
