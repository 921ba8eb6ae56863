// The operations of a profiled run, each with its place in time.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace te::bench
