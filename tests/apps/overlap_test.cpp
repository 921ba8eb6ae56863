// Time intervals, and hidden and exposed communication, checked with numbers computed by hand.
#include "bench/overlap.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/communication.h"
#include "core/json.h"

namespace te::bench {

// In the namespace in which GoogleTest looks for it.
void PrintTo(const Interval& interval, std::ostream* out) {
  *out << '[' << interval.from << ", " << interval.to << ')';
}

namespace {

using Set = std::vector<Interval>;

TEST(Overlap, UnionsAreDisjointAndAscending) {
  EXPECT_EQ(union_of({}), Set{});
  EXPECT_EQ(union_of({{5, 8}, {0, 2}, {1, 3}}), (Set{{0, 3}, {5, 8}}));
  EXPECT_EQ(union_of({{0, 2}, {2, 4}}), (Set{{0, 4}}));             // touching
  EXPECT_EQ(union_of({{0, 10}, {2, 3}, {9, 12}}), (Set{{0, 12}}));  // nested
  EXPECT_EQ(union_of({{4, 4}, {3, 1}, {6, 7}}), (Set{{6, 7}}));     // empty
  EXPECT_EQ(union_of({{-3, -1}, {-2, 1}, {1.5, 2}}), (Set{{-3, 1}, {1.5, 2}}));
  EXPECT_DOUBLE_EQ(total_length(union_of({{0, 2}, {1, 3}, {5, 8}})), 6);  // not 2 + 2 + 3
}

TEST(Overlap, LengthWithinASet) {
  const Set set{{1, 3}, {5, 6}, {8, 12}};
  EXPECT_DOUBLE_EQ(length_within(Interval{0, 20}, set), 2 + 1 + 4);
  EXPECT_DOUBLE_EQ(length_within(Interval{2, 9}, set), 1 + 1 + 1);
  EXPECT_DOUBLE_EQ(length_within(Interval{9, 10}, set), 1);  // inside one
  EXPECT_DOUBLE_EQ(length_within(Interval{3, 5}, set), 0);   // just between two
  EXPECT_DOUBLE_EQ(length_within(Interval{12, 15}, set), 0);
  EXPECT_DOUBLE_EQ(length_within(Interval{-2, 1}, set), 0);
  EXPECT_DOUBLE_EQ(length_within(Interval{0, 20}, Set{}), 0);
  EXPECT_DOUBLE_EQ(length_within(Set{{0, 2}, {5.5, 9}}, set), 1 + 0.5 + 1);
}

TimedOperation operation(OpRole role, int stream, double from, double to, const std::string& name,
                         const std::string& group = "", const std::string& label = "") {
  return {.kind = "",
          .name = name,
          .label = label,
          .group = group,
          .role = role,
          .stream = stream,
          .start_ms = from,
          .ms = to - from};
}

// Computes from 0 to 4 and from 6 to 10, on two CUDA streams that overlap from 2 to 4 and from 7 to 8.
std::vector<TimedOperation> busy_step() {
  return {operation(OpRole::computes, 0, 0, 4, "gemm"), operation(OpRole::computes, 1, 2, 4, "gemm"),
          operation(OpRole::computes, 0, 6, 8, "gemm"),
          operation(OpRole::computes, 1, 7, 10, "norm_forward")};
}

TEST(Communication, HiddenIfAnotherStreamComputes) {
  std::vector<TimedOperation> step = busy_step();
  step.push_back(
      operation(OpRole::communication, 2, 3, 7, "all_gather", "tensor", "linear_fc1 fprop"));  // 3-4, 6-7
  step.push_back(
      operation(OpRole::communication, 2, 9, 13, "all_gather", "tensor", "linear_fc1 fprop"));  // 9-10
  step.push_back(operation(OpRole::communication, 3, 5, 11.5, "reduce_scatter", "data"));       // 6-10
  step.push_back(operation(OpRole::communication, 0, 14, 15, "sum_of_ranks"));
  step.push_back(operation(OpRole::neither, 4, 4, 16, "copy_to_host", "", "offload"));  // hides nothing
  const CommunicationTimes times = communication_times({step});
  ASSERT_EQ(times.rows.size(), 3u);
  EXPECT_EQ(times.rows[0].group, "-");
  EXPECT_EQ(times.rows[0].name, "sum_of_ranks");
  EXPECT_DOUBLE_EQ(times.rows[0].hidden_ms, 0);
  EXPECT_DOUBLE_EQ(times.rows[0].exposed_ms(), 1);
  EXPECT_EQ(times.rows[1].group, "data");
  EXPECT_EQ(times.rows[1].name, "reduce_scatter");
  EXPECT_DOUBLE_EQ(times.rows[1].ms, 6.5);
  EXPECT_DOUBLE_EQ(times.rows[1].hidden_ms, 4);
  EXPECT_DOUBLE_EQ(times.rows[1].exposed_ms(), 2.5);
  EXPECT_EQ(times.rows[2].name, "all_gather (linear_fc1 fprop)");
  EXPECT_DOUBLE_EQ(times.rows[2].calls, 2);
  EXPECT_DOUBLE_EQ(times.rows[2].ms, 8);
  EXPECT_DOUBLE_EQ(times.rows[2].hidden_ms, 1 + 1 + 1);
  EXPECT_DOUBLE_EQ(times.rows[2].exposed_ms(), 5);
  // Communication from 3 to 13 and from 14 to 15. Exposed: 4-6, 10-13 and 14-15; the sum of the rows is 1 + 2.5 + 5.
  EXPECT_DOUBLE_EQ(times.ms, 11);
  EXPECT_DOUBLE_EQ(times.hidden_ms, 5);
  EXPECT_DOUBLE_EQ(times.exposed_ms(), 6);
  const nlohmann::json report = to_json(times, 20);
  EXPECT_DOUBLE_EQ(report.at("exposed_share").get<double>(), 0.3);
  EXPECT_DOUBLE_EQ(report.at("kinds").at(2).at("exposed_ms").get<double>(), 5);
}

TEST(Communication, MeanOverRuns) {
  std::vector<TimedOperation> alone{operation(OpRole::communication, 0, 0, 2, "send", "pipeline")};
  std::vector<TimedOperation> overlapped = busy_step();
  overlapped.push_back(operation(OpRole::communication, 2, 0, 4, "send", "pipeline"));
  const CommunicationTimes times = communication_times({alone, overlapped});
  ASSERT_EQ(times.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(times.rows[0].calls, 1);
  EXPECT_DOUBLE_EQ(times.rows[0].ms, 3);
  EXPECT_DOUBLE_EQ(times.rows[0].hidden_ms, 2);
  EXPECT_DOUBLE_EQ(times.exposed_ms(), 1);
}

TEST(Communication, NoneOnOneRank) {
  EXPECT_TRUE(communication_times({busy_step()}).rows.empty());
  ::testing::internal::CaptureStdout();
  print_communication(communication_times({busy_step()}), 10, "step");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST(Timeline, EventsAreInMicrosecondsByRankAndStream) {
  TimedOperation gemm = operation(OpRole::computes, 0, 0, 1.5, "gemm", "", "linear_qkv \"fprop\"");
  gemm.kind = "GEMMs";
  gemm.flops = 8e9;
  gemm.bytes = 4096;
  TimedOperation gather = operation(OpRole::communication, 2, 0.25, 1, "all_gather", "tensor");
  gather.kind = "communication";
  const nlohmann::json events = parse_json("[" + trace_events({gemm, gather}, 3) + "]");
  ASSERT_EQ(events.size(), 6u);  // the name of the rank, the names of three CUDA streams, two operations
  EXPECT_EQ(events[0].at("name"), "process_name");
  EXPECT_EQ(events[0].at("args").at("name"), "rank 3");
  EXPECT_EQ(events[1].at("args").at("name"), "main CUDA stream");
  EXPECT_EQ(events[3].at("tid"), 2);
  EXPECT_EQ(events[3].at("args").at("name"), "CUDA stream 2");
  const nlohmann::json expected = {
      {"ph", "X"},
      {"name", "gemm"},
      {"cat", "GEMMs"},
      {"pid", 3},
      {"tid", 0},
      {"ts", 0.0},
      {"dur", 1500.0},
      {"args", {{"label", "linear_qkv \"fprop\""}, {"group", ""}, {"bytes", 4096.0}, {"flops", 8e9}}}};
  EXPECT_EQ(events[4], expected);
  EXPECT_EQ(events[5].at("ts"), 250.0);
  EXPECT_EQ(events[5].at("dur"), 750.0);
  EXPECT_EQ(events[5].at("tid"), 2);
  EXPECT_EQ(events[5].at("args").at("group"), "tensor");
}

}  // namespace
}  // namespace te::bench
