#include "experiment/run_state.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/printable.h"
#include "core/strings.h"

namespace te::experiment {
namespace {

namespace fs = std::filesystem;
constexpr std::array<std::string_view, 6> kStages = {"waiting", "running",  "interrupted",
                                                     "failed",  "diverged", "finished"};
constexpr uint64_t kLossTail = 8192;  // bytes read from the end of loss.csv, about fifty lines

Stage stage_of(const nlohmann::json& record) {
  const auto found = std::ranges::find(kStages, record.value("state", "waiting"));
  return found == kStages.end() ? Stage::waiting : static_cast<Stage>(found - kStages.begin());
}

// The config of a config.yaml, which an earlier version may have written. UserError if this version cannot run it.
config::Config stored_config(const fs::path& path, const std::string& text) {
  try {
    config::check_resumable(text);
    return config::parse_config(config::upgrade_stored(text), path.string());
  } catch (const UserError& error) {
    user_error("{}: {}; or set another directory", path.string(), error.what());
  }
}

// The checkpoint from which a run starts is not in its config.
void check_start(const Run& run) {
  const nlohmann::json record = try_parse_json(read_file(run.folder / "state.json").text);
  if (!record.is_object() || !record.contains("parent")) return;
  const auto start_of = [](const std::string& parent, int64_t step) {
    return parent.empty() ? "with new weights" : fmt::format("from step {} of {}", step, parent);
  };
  const std::string before = start_of(printable(record.value("parent", "")),
                                      record.value("parent_step", int64_t{0})),
                    now = start_of(run.parent, run.parent_step);
  if (before != now)
    user_error("{}: started {}, is to start {}; set another directory, or delete this folder",
               run.folder.string(), before, now);
}

}  // namespace

std::string_view to_string(Stage stage) {
  return kStages[static_cast<size_t>(stage)];
}

void write_whole(const fs::path& path, const std::string& text) {
  const fs::path partial = path.string() + ".tmp";
  {
    File out(partial, O_WRONLY | O_CREAT | O_TRUNC);
    if (!out.is_open() || !out.write_all(text))
      user_error("{} cannot be written: {}; check the folder's permissions and the disk", path.string(),
                 out.error());
  }
  std::error_code error;
  fs::rename(partial, path, error);
  if (error) user_error("{}: {}", path.string(), error.message());
}

RunState read_state(const Run& run) {
  RunState state;
  const auto record = try_parse_json(read_file(run.folder / "state.json").text);
  if (!record.is_object()) return state;
  state.stage = stage_of(record);
  state.attempts = record.value("attempts", int64_t{0});
  state.exit_code = record.value("exit_code", 0);
  state.seconds = record.value("seconds", 0.0);
  state.process = record.value("process", int64_t{0});
  state.reason = printable(record.value("reason", ""));
  if (record.contains("evaluation") && record["evaluation"].is_object()) {
    const nlohmann::json& evaluation = record["evaluation"];
    state.evaluation = {stage_of(evaluation), evaluation.value("request", ""),
                        evaluation.value("seconds", 0.0), printable(evaluation.value("reason", ""))};
  }
  return state;
}

void write_state(const Run& run, const RunState& state) {
  nlohmann::json record = {{"state", to_string(state.stage)},
                           {"attempts", state.attempts},
                           {"exit_code", state.exit_code},
                           {"seconds", state.seconds},
                           {"process", state.process},
                           {"reason", state.reason},
                           {"parent", run.parent},
                           {"parent_step", run.parent_step}};
  if (!state.evaluation.request.empty())
    record["evaluation"] = {{"state", to_string(state.evaluation.stage)},
                            {"request", state.evaluation.request},
                            {"seconds", state.evaluation.seconds},
                            {"reason", state.evaluation.reason}};
  write_whole(run.folder / "state.json", dump_json(record, 2) + "\n");
}

Stage read_end(const Run& run) {
  const auto record = try_parse_json(read_file(run.folder / "run.json").text);
  if (!record.is_object() || !record.contains("starts") || !record["starts"].is_array())
    return Stage::waiting;
  const auto start = record["starts"].empty() ? nlohmann::json() : record["starts"].back();
  const std::string end = start.is_object() ? start.value("end", "") : "";
  if (end == "diverged") return Stage::diverged;
  return end == "finished" || end == "stopped early" ? Stage::finished : Stage::waiting;
}

RunProgress read_progress(const Run& run) {
  RunProgress progress;
  File file(run.folder / "loss.csv");
  if (!file.is_open()) return progress;
  const std::string header = file.read_at(0, kLossTail);
  const uint64_t start = header.find('\n') + 1;
  if (start == 0) return progress;
  const std::vector<std::string_view> names = split(std::string_view(header).substr(0, start - 1), ',');
  const uint64_t tail = std::max(start, file.bytes() - std::min(file.bytes(), kLossTail));
  std::istringstream lines(file.read_at(tail, kLossTail));
  std::string line;
  if (tail > start) std::getline(lines, line);  // skip a partial line
  while (std::getline(lines, line) && !lines.eof()) {
    // Lines of steps without validation end with empty columns.
    const std::vector<std::string_view> fields = split(line, ',');
    if (fields.size() != names.size()) continue;
    const auto number = [&](const char* name) {
      const auto at = std::ranges::find(names, name) - names.begin();
      return at < static_cast<std::ptrdiff_t>(fields.size())
                 ? std::strtod(fields[static_cast<size_t>(at)].data(), nullptr)  // ends at the comma
                 : 0.0;
    };
    const double valid = number("valid_loss");
    progress = {std::llround(number("step")), number("loss"), valid > 0 ? valid : progress.valid_loss,
                number("tokens_per_s"), number("step_ms")};
  }
  return progress;
}

void prepare_folder(const Run& run) {
  std::error_code error;
  fs::create_directories(run.folder, error);
  if (error)
    user_error("{}: {}; choose a directory that can be written", run.folder.string(), error.message());
  check_start(run);
  const fs::path path = run.folder / "config.yaml";
  const std::string text = config::to_yaml(run.config);
  if (!fs::exists(path)) return write_whole(path, text);
  const FileText file = read_file(path);
  if (!file) user_error("{}: cannot be read: {}; delete this folder", path.string(), file.error);
  if (file.text == text) return;
  const auto changed = config::changed_keys(config::to_yaml(stored_config(path, file.text)), run.config);
  if (changed.empty()) return write_whole(path, text);  // te-train refuses keys of earlier versions
  user_error(
      "{}: was started with other settings ({} was {}, is {}); set another directory, or delete this folder",
      run.folder.string(), changed[0].path, changed[0].before, changed[0].now);
}

}  // namespace te::experiment
