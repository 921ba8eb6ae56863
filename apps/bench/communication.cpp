#include "bench/communication.h"

#include <cstdio>
#include <map>
#include <utility>

#include "bench/overlap.h"
#include "bench/session.h"

namespace te::bench {
namespace {

Interval interval_of(const TimedOperation& operation) {
  return {operation.start_ms, operation.end_ms()};
}

std::vector<Interval> union_of_role(const std::vector<TimedOperation>& operations, OpRole role) {
  std::vector<Interval> intervals;
  for (const TimedOperation& operation : operations)
    if (operation.role == role) intervals.push_back(interval_of(operation));
  return union_of(std::move(intervals));
}

std::string communication_name(const TimedOperation& operation) {
  return operation.label.empty() ? operation.name : fmt::format("{} ({})", operation.name, operation.label);
}

std::string percent(double part, double whole) {
  return whole > 0.0 ? fmt::format("{:.1f}%", 100.0 * part / whole) : "";
}

std::vector<std::string> communication_cells(const CommunicationRow& row, double run_ms) {
  return {row.group,
          row.name,
          row.calls == 0 ? "" : fmt::format("{:.0f}", row.calls),
          fmt::format("{:.3f}", row.ms),
          fmt::format("{:.3f}", row.hidden_ms),
          fmt::format("{:.3f}", row.exposed_ms()),
          percent(row.hidden_ms, row.ms),
          percent(row.exposed_ms(), run_ms)};
}

}  // namespace

CommunicationTimes communication_times(const std::vector<std::vector<TimedOperation>>& runs) {
  CommunicationTimes times;
  std::map<std::pair<std::string, std::string>, CommunicationRow> rows;
  const double share = runs.empty() ? 0.0 : 1.0 / static_cast<double>(runs.size());
  for (const std::vector<TimedOperation>& operations : runs) {
    const std::vector<Interval> computing = union_of_role(operations, OpRole::computes);
    const std::vector<Interval> sending = union_of_role(operations, OpRole::communication);
    times.ms += share * total_length(sending);
    times.hidden_ms += share * length_within(sending, computing);
    for (const TimedOperation& operation : operations) {
      if (operation.role != OpRole::communication) continue;
      const std::string group = operation.group.empty() ? "-" : operation.group;
      CommunicationRow& row = rows[{group, communication_name(operation)}];
      row.group = group;
      row.name = communication_name(operation);
      row.calls += share;
      row.ms += share * operation.ms;
      row.hidden_ms += share * length_within(interval_of(operation), computing);
    }
  }
  for (auto& [key, row] : rows) times.rows.push_back(std::move(row));
  return times;
}

void print_communication(const CommunicationTimes& times, double run_ms, const std::string& run_name) {
  if (times.rows.empty()) return;
  std::vector<std::vector<std::string>> table{{"group", "communication", "calls", "ms", "hidden ms",
                                               "exposed ms", "hidden", "exposed of " + run_name}};
  for (const CommunicationRow& row : times.rows) table.push_back(communication_cells(row, run_ms));
  const CommunicationRow all{.group = "all communication", .ms = times.ms, .hidden_ms = times.hidden_ms};
  table.push_back(communication_cells(all, run_ms));
  print_table(table);
  std::printf(
      "hidden: overlapped by computation of the same rank on another CUDA stream; \"all communication\" "
      "counts time with several operations in flight once\n\n");
}

nlohmann::json to_json(const CommunicationTimes& times, double run_ms) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CommunicationRow& row : times.rows) {
    rows.push_back({{"group", row.group},
                    {"name", row.name},
                    {"calls", row.calls},
                    {"ms", row.ms},
                    {"hidden_ms", row.hidden_ms},
                    {"exposed_ms", row.exposed_ms()}});
  }
  return {{"kinds", rows},
          {"ms", times.ms},
          {"hidden_ms", times.hidden_ms},
          {"exposed_ms", times.exposed_ms()},
          {"exposed_share", times.exposed_ms() / run_ms}};
}

}  // namespace te::bench
