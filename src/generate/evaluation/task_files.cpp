#include "generate/evaluation/task_files.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "generate/evaluation/mmlu.h"
#include "generate/evaluation/task_rules.h"
#include "text/readers/byte_stream.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;

std::string known_names() {
  std::string names;
  for (const TaskRule& rule : task_rules()) names += fmt::format("{}, ", rule.name);
  return names + "mmlu";
}

void read_documents(Task& task, Document (*make)(const text::JsonRecord&)) {
  text::read_json_records(task.file, text::JsonLayout::kList,
                          [&](const text::JsonRecord& record) { task.documents.push_back(make(record)); });
}

Task read_published(const TaskRule& rule, const fs::path& data) {
  Task task{.name = rule.name, .kind = rule.kind, .acc_norm = rule.acc_norm, .version = rule.version};
  std::vector<std::string> names = {task.name + ".jsonl"};
  names.insert(names.end(), rule.files.begin(), rule.files.end());
  const auto file = first_file(data, names);
  if (!file) {
    user_error("--data {}: has no data of {}; must have one of {} (may be compressed)", data.string(),
               task.name, fmt::join(names, ", "));
  }
  task.file = file->string();
  read_documents(task, rule.make);
  return task;
}

/// A custom task, or nothing.
std::optional<Task> read_own(const std::string& name, const fs::path& data) {
  const bool path = name.find(".jsonl") != std::string::npos;
  const auto file = path ? first_file("", {name}) : first_file(data, {name + ".jsonl"});
  if (!file) return {};
  std::string plain = fs::path(text::without_compression_suffix(file->string())).filename();
  Task task{.name = plain.substr(0, plain.rfind(".jsonl")), .version = 0.0, .file = file->string()};
  read_documents(task, make_own_document);
  return task;
}

Task read_task(const std::string& name, const TaskOptions& options) {
  if (name.starts_with("mmlu_") && !mmlu_tasks(name).empty())
    return read_mmlu(name, options.data, options.num_fewshot);
  if (const TaskRule* rule = find_task_rule(name)) return read_published(*rule, options.data);
  if (auto own = read_own(name, options.data)) return std::move(*own);
  user_error(
      "--tasks {}: is neither a task ({}, mmlu_SUBJECT), nor the name of {}.jsonl in {}, nor the path of a "
      ".jsonl file",
      name, known_names(), name, options.data.empty() ? "--data DIR" : options.data);
}

void finish(Task& task, int64_t limit) {
  if (task.documents.empty()) user_error("{}: has no documents", task.file);
  task.original = static_cast<int64_t>(task.documents.size());
  if (limit > 0 && limit < task.original) task.documents.resize(static_cast<size_t>(limit));
  for (size_t i = 0; i < task.documents.size(); ++i) task.documents[i].id = static_cast<int64_t>(i);
}

}  // namespace

std::optional<fs::path> first_file(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const char* suffix : {"", ".gz", ".xz", ".zst"}) {
      const fs::path file = folder / (name + suffix);
      if (fs::is_regular_file(file)) return file;
    }
  }
  return {};
}

std::vector<Task> read_tasks(const std::vector<std::string>& names, const TaskOptions& options) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    const std::vector<std::string> subjects = mmlu_tasks(name);
    if (subjects.empty()) all.push_back(name);
    all.insert(all.end(), subjects.begin(), subjects.end());
  }
  std::vector<Task> tasks;
  for (const std::string& name : all) {
    tasks.push_back(read_task(name, options));
    const bool twice = std::any_of(tasks.begin(), tasks.end() - 1,
                                   [&](const Task& other) { return other.name == tasks.back().name; });
    if (twice) user_error("--tasks: {} is named twice", tasks.back().name);
    finish(tasks.back(), options.limit);
  }
  return tasks;
}

}  // namespace te::generate
