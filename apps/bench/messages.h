// What the ranks' messages cost a step: how much of their time lay beside computation, and how much did not.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/timeline.h"

namespace te::bench {

/// One kind of message on one rank. Numbers are those of one run.
struct MessageRow {
  std::string group;  ///< the ranks' group: "tensor", "data" ...; "-" for the sum of what was copied
  std::string name;   ///< "all_gather (linear_qkv fprop)"
  double calls = 0;
  double ms = 0;         ///< sum of the calls, each from begin to end, its waits for other ranks included
  double hidden_ms = 0;  ///< part of it in which the rank computed on another stream

  double exposed_ms() const { return ms - hidden_ms; }
};

/// All of them, in the order of their groups and names. The sums count a moment once, however many messages it has:
/// they are not those of the rows.
struct MessageTimes {
  std::vector<MessageRow> rows;
  double ms = 0;         ///< in which some message was under way
  double hidden_ms = 0;  ///< and some operation computed

  double exposed_ms() const { return ms - hidden_ms; }  ///< and none did
};

/// Mean of some runs' operations. Only what computes (OpRole::computes) hides a message; it is on another stream then,
/// since the operations of one stream follow each other.
MessageTimes message_times(const std::vector<std::vector<TimedOperation>>& runs);

/// The table, or nothing where there are no messages; run_ms: one run without the profiler, run_name: "step".
void print_messages(const MessageTimes& messages, double run_ms, const std::string& run_name);

nlohmann::json to_json(const MessageTimes& messages, double run_ms);

}  // namespace te::bench
