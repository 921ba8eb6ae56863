#include "experiment/evaluation.h"

#include <fmt/ranges.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/printable.h"

namespace te::experiment {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kLogTail = 4096;  // bytes read from the end of a log

/// The metric that is shown for a task: the first of these that it has.
constexpr std::array kShownMetrics = {"acc_norm,none", "acc,none", "word_perplexity,none", "perplexity,none"};

std::vector<std::string> arguments_of(const Evaluation& evaluation) {
  std::vector<std::string> words = {"--tasks", fmt::format("{}", fmt::join(evaluation.tasks, ",")), "--data",
                                    evaluation.data};
  if (evaluation.limit > 0) words.insert(words.end(), {"--limit", std::to_string(evaluation.limit)});
  words.insert(words.end(), evaluation.options.begin(), evaluation.options.end());
  return words;
}

}  // namespace

std::string request_text(const Evaluation& evaluation) {
  return shell_text({arguments_of(evaluation), {}});
}

Command evaluation_command(const Evaluation& evaluation, const Run& run, const Slot& slot,
                           const std::string& te_generate) {
  Command command{slot.launcher, slot.environment};
  command.words.insert(command.words.end(),
                       {te_generate, "evaluate", "--checkpoint", run.config.checkpoint.directory, "--output",
                        (run.folder / kResultsName).string(), "--items", (run.folder / kItemsName).string()});
  if (run.config.training.device == config::DeviceChoice::cpu)
    command.words.insert(command.words.end(), {"--device", "cpu"});
  if (slot.needs_gpus(run)) command.words.insert(command.words.end(), {"--device", "cuda"});
  const std::vector<std::string> arguments = arguments_of(evaluation);
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  return command;
}

bool has_results(const Run& run) {
  return fs::exists(run.folder / kResultsName) && fs::exists(run.folder / kItemsName);
}

void remove_results(const Run& run) {
  for (const char* name : {kResultsName, kItemsName}) {
    std::error_code error;
    fs::remove(run.folder / name, error);
    if (error) user_error("{}: {}; delete it", (run.folder / name).string(), error.message());
  }
}

std::string evaluation_progress(const Run& run) {
  File file(run.folder / kEvaluationLogName);
  if (!file.is_open()) return "";
  std::istringstream lines(file.read_at(file.bytes() - std::min(file.bytes(), kLogTail), kLogTail));
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) last = line;
  // "hellaswag: 1200 of 10042"
  const size_t colon = last.find(": "), of = last.find(" of ");
  if (colon == std::string::npos || of == std::string::npos || of < colon + 2) return "";
  const std::string done = last.substr(colon + 2, of - colon - 2), all = last.substr(of + 4);
  const auto is_number = [](const std::string& text) {
    return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  if (!is_number(done) || !is_number(all)) return "";
  return fmt::format("{} {}/{}", printable(last.substr(0, colon)), done, all);
}

std::string results_text(const Run& run) {
  const auto content = try_parse_json(read_file(run.folder / kResultsName).text);
  if (!content.is_object() || !content.contains("results") || !content["results"].is_object()) return "";
  std::vector<std::string> parts;
  for (const auto& [task, metrics] : content["results"].items()) {
    for (const std::string name : kShownMetrics) {
      if (!metrics.contains(name) || !metrics[name].is_number()) continue;
      parts.push_back(
          fmt::format("{} {} {:.4f}", task, name.substr(0, name.find(',')), metrics[name].get<double>()));
      break;
    }
  }
  return printable(fmt::format("{}", fmt::join(parts, ", ")));
}

}  // namespace te::experiment
