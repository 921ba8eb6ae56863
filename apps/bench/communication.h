// Time of the ranks' communication in a step: the part that computation hides, and the exposed part.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/timeline.h"

namespace te::bench {

/// One kind of communication on one rank. Numbers are per run.
struct CommunicationRow {
  std::string
      group;  ///< the ranks' group: "tensor", "data" ...; "-" if the operation has none (sums of copied data)
  std::string name;  ///< "all_gather (linear_qkv fprop)"
  double calls = 0;
  double ms = 0;         ///< sum over the calls, including waits for other ranks
  double hidden_ms = 0;  ///< part of it in which the rank computed on another CUDA stream

  double exposed_ms() const { return ms - hidden_ms; }
};

/// All rows, sorted by group and name. The totals count time with several operations in flight once, so they can be
/// less than the sum of the rows.
struct CommunicationTimes {
  std::vector<CommunicationRow> rows;
  double ms = 0;         ///< time with communication in flight
  double hidden_ms = 0;  ///< part of it in which the rank computed

  double exposed_ms() const { return ms - hidden_ms; }
};

/// Mean over runs. Only operations with OpRole::computes hide communication; they are on another CUDA stream, since the
/// operations of one CUDA stream do not overlap.
CommunicationTimes communication_times(const std::vector<std::vector<TimedOperation>>& runs);

/// Prints the table, or nothing if there is no communication. run_ms: time of a run without the profiler; run_name:
/// "step".
void print_communication(const CommunicationTimes& times, double run_ms, const std::string& run_name);

nlohmann::json to_json(const CommunicationTimes& times, double run_ms);

}  // namespace te::bench
