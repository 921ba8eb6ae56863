// --timeline of te-bench step: every operation of a profiled step, as trace events that Perfetto (ui.perfetto.dev),
// chrome://tracing and scripts/plot_timeline.py read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/world.h"

namespace te::bench {

/// What an operation is to those who ask what ran beside a message.
enum class OpRole : uint8_t {
  computes,  ///< kernels, copies and fills in the device's own memory
  message,   ///< collectives, sends and receives, and the sum of what the ranks have copied to each other
  neither,   ///< copies from and to the host beside the step, and the wait for them
};

/// One operation of a profiled run.
struct TimedOperation {
  std::string kind;   ///< the profile's group: "GEMMs", "attention", "communication" ...
  std::string name;   ///< "gemm", "all_gather"
  std::string label;  ///< "linear_fc1 fprop", or empty
  std::string group;  ///< of a message: its ranks' group ("tensor", "data" ...)
  OpRole role = OpRole::computes;
  int stream = 0;       ///< 0: that of the step; others in the order of their first operation
  double start_ms = 0;  ///< since the run's first operation on this rank began
  double ms = 0;
  double flops = 0, bytes = 0;

  double end_ms() const { return start_ms + ms; }
};

/// One rank's events, objects of JSON separated by commas, one a line: the names of the rank (as process) and of its
/// streams (as threads), then the operations as complete events, times in microseconds.
std::string trace_events(const std::vector<TimedOperation>& operations, int rank);

/// UserError unless the file can be written: to be known before the step is timed.
void check_timeline(const std::string& path);

/// Rank 0 writes all ranks' events, rank after rank. Time zero of each is the start of its own first operation, since
/// the ranks' devices share no clock. Collective. UserError when the file cannot be written.
void write_timeline(const std::string& path, const std::string& title,
                    const std::vector<TimedOperation>& operations, parallel::World& world);

}  // namespace te::bench
