#include "experiment/summary.h"

#include <spdlog/fmt/fmt.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/json.h"

namespace te::experiment {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json summary_of(const Item& item, const fs::path& directory) {
  json record = {{"folder", item.run.folder.lexically_relative(directory).string()},
                 {"seed", item.run.seed},
                 {"state", to_string(item.state.stage)},
                 {"attempts", item.state.attempts},
                 {"exit_code", item.state.exit_code},
                 {"seconds", item.state.seconds},
                 {"step", item.progress.step},
                 {"steps", item.run.config.training.train_steps}};
  if (item.progress.step > 0) record["loss"] = item.progress.loss;
  if (item.progress.valid_loss > 0) record["valid_loss"] = item.progress.valid_loss;
  if (!item.state.reason.empty()) record["reason"] = item.state.reason;
  if (const EvaluationState& evaluation = item.state.evaluation; !evaluation.request.empty()) {
    record["evaluation"] = to_string(evaluation.stage);
    if (!evaluation.reason.empty()) record["evaluation_reason"] = evaluation.reason;
  }
  return record;
}

// In the installation of this program, else in the sources it was built from.
fs::path report_script() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share/te-train/scripts/compare_loss.py";
  return fs::exists(installed) ? installed : fs::path(TE_SOURCE_DIR) / "scripts/compare_loss.py";
}

}  // namespace

void write_summary(const Experiment& experiment, const std::vector<Item>& items) {
  json summary = {{"format", 1},
                  {"name", experiment.name},
                  {"base", experiment.base},
                  {"overrides", experiment.overrides},
                  {"baseline", experiment.baseline},
                  {"tolerance",
                   {{"nats", experiment.tolerance.nats},
                    {"percent", experiment.tolerance.percent},
                    {"given", experiment.tolerance.given}}},
                  {"variants", json::array()}};
  if (experiment.evaluation) {
    const Evaluation& evaluation = *experiment.evaluation;
    summary["evaluate"] = {{"tasks", evaluation.tasks},
                           {"data", evaluation.data},
                           {"limit", evaluation.limit},
                           {"options", evaluation.options}};
  }
  for (const Variant& variant : experiment.variants) {
    json runs = json::array();
    for (const Item& item : items)
      if (item.run.variant == variant.name) runs.push_back(summary_of(item, experiment.directory));
    json record = {{"name", variant.name}, {"overrides", variant.overrides}, {"runs", runs}};
    if (!variant.baseline.empty()) record["baseline"] = variant.baseline;
    summary["variants"].push_back(record);
  }
  write_whole(experiment.directory / "summary.json", dump_json(summary, 2) + "\n");
}

bool can_report(const Experiment& experiment, const std::vector<Item>& items) {
  bool baseline = false, other = false;
  for (const Item& item : items)
    if (item.state.stage == Stage::finished)
      (item.run.variant == experiment.baseline ? baseline : other) = true;
  return baseline && other;
}

void make_report(const Experiment& experiment) {
  const std::string script = report_script().string(), folder = experiment.directory.string();
  const std::vector<std::string> arguments = {script, folder, "--report",
                                              (experiment.directory / "report").string()};
  bool started = false;
  // The distribution's Python has the modules that scripts/install_deps.sh installs; the Python on the PATH may not.
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (run_and_wait({python, "-c", "import numpy, scipy, matplotlib"}, true) != 0) continue;
    std::vector<std::string> words = {python};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::fflush(stdout);
    started = true;
    if (run_and_wait(words, false) == 0) return;
    break;
  }
  std::vector<std::string> words = {"python3"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::printf("no report was written: %s %s\n",
              started ? "the script stopped with the error above; to run it again:"
                      : "it needs python3 with numpy, scipy and matplotlib; install them and run",
              shell_text({words, {}}).c_str());
}

}  // namespace te::experiment
