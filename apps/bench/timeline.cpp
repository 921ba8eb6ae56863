#include "bench/timeline.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

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

[[noreturn]] void cannot_write(const std::string& path) {
  user_error("--timeline {}: cannot be written; check the folder and its permissions", path);
}

}  // namespace

std::string trace_events(const std::vector<TimedOperation>& operations, int rank) {
  int streams = 0;
  for (const TimedOperation& operation : operations) streams = std::max(streams, operation.stream + 1);
  std::string text = name_event("process_name", rank, 0, fmt::format("rank {}", rank)).dump();
  for (int stream = 0; stream < streams; ++stream) {
    const std::string name = stream == 0 ? "main stream" : fmt::format("stream {}", stream);
    text += ",\n" + name_event("thread_name", rank, stream, name).dump();
  }
  for (const TimedOperation& operation : operations) text += ",\n" + complete_event(operation, rank).dump();
  return text;
}

void check_timeline(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) cannot_write(path);
}

void write_timeline(const std::string& path, const std::string& title,
                    const std::vector<TimedOperation>& operations, parallel::World& world) {
  const std::string own = trace_events(operations, world.rank());
  std::ofstream file;
  if (world.leader()) {
    file.open(path);
    const nlohmann::json about = {{"config", title},
                                  {"ranks", world.size()},
                                  {"time_zero", "per rank: the start of its step's first operation"}};
    file << R"({"displayTimeUnit": "ms", "otherData": )" << about.dump() << ", \"traceEvents\": [\n";
  }
  // One rank's text at a time: all of them together could exceed the 32-bit counts of MPI.
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string events = world.broadcast_string(own, {}, rank);
    if (world.leader()) file << (rank > 0 ? ",\n" : "") << events;
  }
  if (!world.leader()) return;
  file << "\n]}\n";
  file.close();
  if (!file) cannot_write(path);
}

}  // namespace te::bench
