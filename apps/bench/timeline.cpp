#include "bench/timeline.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/output_file.h"
#include "core/json.h"

namespace te::bench {
namespace {

nlohmann::json name_event(const char* what, int rank, int stream, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", stream}, {"args", {{"name", name}}}};
}

/// Microseconds, rounded to nanoseconds.
double microseconds(double ms) {
  return std::round(ms * 1e6) / 1e3;
}

nlohmann::json complete_event(const TimedOperation& operation, int rank) {
  return {{"ph", "X"},
          {"name", operation.name},
          {"cat", operation.kind},
          {"pid", rank},
          {"tid", operation.stream},
          {"ts", microseconds(operation.start_ms)},
          {"dur", microseconds(operation.ms)},
          {"args",
           {{"label", operation.label},
            {"group", operation.group},
            {"bytes", operation.bytes},
            {"flops", operation.flops}}}};
}

}  // namespace

std::string trace_events(const std::vector<TimedOperation>& operations, int rank) {
  int streams = 0;
  for (const TimedOperation& operation : operations) streams = std::max(streams, operation.stream + 1);
  std::string text = name_event("process_name", rank, 0, fmt::format("rank {}", rank)).dump();
  for (int stream = 0; stream < streams; ++stream) {
    const std::string name = stream == 0 ? "main CUDA stream" : fmt::format("CUDA stream {}", stream);
    text += ",\n" + name_event("thread_name", rank, stream, name).dump();
  }
  for (const TimedOperation& operation : operations) text += ",\n" + complete_event(operation, rank).dump();
  return text;
}

void check_timeline(const std::string& path) {
  const apps::OutputFile file("--timeline", path);
}

void write_timeline(const std::string& path, const std::string& title,
                    const std::vector<TimedOperation>& operations, parallel::World& world) {
  const std::string own = trace_events(operations, world.rank());
  std::optional<apps::OutputFile> file;
  if (world.leader()) {
    file.emplace("--timeline", path);
    const nlohmann::json about = {{"config", title},
                                  {"ranks", world.size()},
                                  {"time_zero", "per rank: the start of its step's first operation"}};
    file->write(R"({"displayTimeUnit": "ms", "otherData": )" + dump_json(about) + ", \"traceEvents\": [\n");
  }
  // One rank's text at a time: all of them together could exceed the 32-bit counts of MPI.
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string events = world.broadcast_string(own, {}, rank);
    if (file) file->write((rank > 0 ? ",\n" : "") + events);
  }
  if (!file) return;
  file->write("\n]}\n");
  file->finish();
}

}  // namespace te::bench
