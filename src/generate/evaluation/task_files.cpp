#include "generate/evaluation/task_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "generate/evaluation/mmlu.h"
#include "generate/evaluation/python_text.h"
#include "generate/evaluation/task_rules.h"
#include "text/readers/byte_stream.h"
#include "text/readers/line_reader.h"

namespace te::generate {
namespace {

namespace fs = std::filesystem;

std::string known_names() {
  std::string names;
  for (const TaskRule& rule : task_rules()) names += fmt::format("{}, ", rule.name);
  return names + "mmlu";
}

/// Reads the answers of PIQA, which are in a separate file with one answer per line.
std::vector<std::string> read_labels(const fs::path& file) {
  std::vector<std::string> labels;
  text::LineReader lines(file);
  std::string_view line;
  while (lines.next_full_line(&line)) labels.emplace_back(text::without_line_break(line));
  return labels;
}

void read_json_documents(Task& task, Document (*make)(const text::JsonRecord&),
                         const std::vector<std::string>& labels) {
  text::read_json_records(task.file, text::JsonLayout::kList, [&](const text::JsonRecord& record) {
    const size_t index = task.documents.size();
    if (index >= labels.size() || record.object.contains("label")) {
      task.documents.push_back(make(record));
    } else {
      nlohmann::json object = record.object;
      object["label"] = labels[index];
      task.documents.push_back(make({object, record.place, record.bytes}));
    }
  });
}

void read_hellaswag_lines(Task& task) {
  text::LineReader lines(task.file);
  std::vector<std::string> six;
  std::string place;
  std::string_view line;
  while (lines.next_full_line(&line)) {
    if (six.empty()) place = lines.place();
    six.emplace_back(text::without_line_break(line));
    if (six.size() < 6) continue;
    task.documents.push_back(hellaswag_of_lines(six, place));
    six.clear();
  }
  if (!six.empty()) user_error("{}: the last document has {} lines, must have six", place, six.size());
}

// Divides the raw text into pages, each starting at a first-level heading.
void read_wikitext(Task& task, const TaskRule& rule) {
  const std::string text = read_text(task.file);
  std::string page;
  const auto finish = [&] {
    if (!python::strip(page).empty()) {
      const nlohmann::json object = {{"page", page}};
      task.documents.push_back(rule.make({object, task.file, 0}));
    }
    page.clear();
  };
  bool first = true;  // first line of a page
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    const std::string joined = python::replace(python::replace(line, "= = =", "==="), "= =", "==");
    const std::string_view heading = python::strip(joined);
    if (heading.starts_with("= ") && heading.ends_with(" =")) finish(), first = true;
    if (!first) page += '\n';
    page += line;
    first = false;
    at = end + 1;
  }
  finish();
}

Task read_published(const TaskRule& rule, const fs::path& data) {
  Task task{.name = rule.name, .kind = rule.kind, .acc_norm = rule.acc_norm, .version = rule.version};
  std::vector<std::string> names = {task.name + ".jsonl"};
  names.insert(names.end(), rule.files.begin(), rule.files.end());
  const auto file = first_file(data, names);
  if (!file) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    user_error("--data {}: has no data of {}; must have one of {} (may be compressed)", data.string(),
               task.name, all);
  }
  task.file = file->string();
  const std::string plain = text::without_compression_suffix(task.file);
  const fs::path labels = fs::path(plain).replace_extension().string() + "-labels.lst";
  if (plain.ends_with(".txt")) {
    read_hellaswag_lines(task);
  } else if (plain.ends_with(".raw")) {
    read_wikitext(task, rule);
  } else {
    read_json_documents(task, rule.make,
                        fs::exists(labels) ? read_labels(labels) : std::vector<std::string>{});
  }
  return task;
}

/// A custom task, or nothing.
std::optional<Task> read_own(const std::string& name, const fs::path& data) {
  const bool path = name.find(".jsonl") != std::string::npos;
  const auto file = path ? first_file("", {name}) : first_file(data, {name + ".jsonl"});
  if (!file) return {};
  std::string plain = fs::path(text::without_compression_suffix(file->string())).filename();
  Task task{.name = plain.substr(0, plain.rfind(".jsonl")), .version = 0.0, .file = file->string()};
  read_json_documents(task, make_own_document, {});
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

std::string read_text(const fs::path& file) {
  text::ByteStream stream(file);
  std::string text;
  std::vector<char> part(size_t{1} << 20);
  while (const size_t count = stream.read(part.data(), part.size())) text.append(part.data(), count);
  return text;
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
