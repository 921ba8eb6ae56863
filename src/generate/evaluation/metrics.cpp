#include "generate/evaluation/metrics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "generate/evaluation/mmlu.h"

namespace te::generate {
namespace {

using nlohmann::ordered_json;

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Sample standard deviation / sqrt(n); none for a single value.
std::optional<double> stderr_of_mean(const std::vector<double>& values) {
  if (values.size() < 2) return {};
  const double middle = mean(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / (count - 1.0) / count);
}

Metric mean_metric(const char* name, const std::vector<double>& values) {
  return {name, mean(values), stderr_of_mean(values), true};
}

struct Right {
  double acc = 0.0, acc_norm = 0.0;
};

Right right(const Document& document, const DocumentScores& scores) {
  Right result{chosen(scores) == document.gold ? 1.0 : 0.0, 0.0};
  result.acc_norm = chosen_by_character(scores, document.choice_lengths) == document.gold ? 1.0 : 0.0;
  return result;
}

std::vector<Metric> choice_metrics(const Task& task, const std::vector<DocumentScores>& scores) {
  std::vector<double> acc, acc_norm;
  for (size_t i = 0; i < scores.size(); ++i) {
    const Right judged = right(task.documents[i], scores[i]);
    acc.push_back(judged.acc);
    acc_norm.push_back(judged.acc_norm);
  }
  std::vector<Metric> metrics = {mean_metric("acc", acc)};
  if (task.acc_norm) metrics.push_back(mean_metric("acc_norm", acc_norm));
  return metrics;
}

std::vector<Metric> last_word_metrics(const std::vector<DocumentScores>& scores) {
  std::vector<double> acc, sums;
  for (const DocumentScores& document : scores) {
    acc.push_back(document[0].is_argmax ? 1.0 : 0.0);
    sums.push_back(document[0].log_probability);
  }
  Metric perplexity{"perplexity", std::exp(-mean(sums)), stderr_of_mean(sums), false};
  if (perplexity.stderr_of_mean) *perplexity.stderr_of_mean *= perplexity.value;
  return {perplexity, mean_metric("acc", acc)};
}

std::vector<Metric> rolling_metrics(const Task& task, const std::vector<DocumentScores>& scores) {
  double sum = 0.0, words = 0.0, bytes = 0.0;
  for (size_t i = 0; i < scores.size(); ++i) {
    sum += scores[i][0].log_probability;
    words += static_cast<double>(task.documents[i].words);
    bytes += static_cast<double>(task.documents[i].bytes);
  }
  // NaN if the documents have no words or bytes.
  const auto nats_per = [&](double units) { return units > 0 ? -sum / units : std::nan(""); };
  return {{"word_perplexity", std::exp(nats_per(words)), {}, false},
          {"byte_perplexity", std::exp(nats_per(bytes)), {}, false},
          {"bits_per_byte", nats_per(bytes) / std::log(2.0), {}, false}};
}

void add_metric(ordered_json& out, const Metric& metric) {
  out[metric.name + ",none"] = metric.value;
  out[metric.name + "_stderr,none"] =
      metric.stderr_of_mean ? ordered_json(*metric.stderr_of_mean) : ordered_json("N/A");
}

/// The display name of a task: MMLU's subjects and groups drop the prefix.
std::string alias(const std::string& name) {
  return name.starts_with("mmlu_") ? name.substr(5) : name;
}

GroupResult pooled(const std::string& name, const std::vector<const EvaluatedTask*>& tasks,
                   std::vector<std::string> members) {
  GroupResult group{.name = name, .members = std::move(members)};
  double sum = 0.0, variance = 0.0;
  bool known = true;
  for (const EvaluatedTask* task : tasks) {
    const Metric& acc = task->metrics[0];
    const auto count = static_cast<double>(task->scores.size());
    group.documents += static_cast<int64_t>(task->scores.size());
    sum += acc.value * count;
    known = known && acc.stderr_of_mean;
    if (known) variance += (count - 1.0) * *acc.stderr_of_mean * *acc.stderr_of_mean * count;
  }
  const auto all = static_cast<double>(group.documents);
  group.acc = {"acc", sum / all, {}, true};
  if (known) group.acc.stderr_of_mean = std::sqrt(variance / (all - static_cast<double>(tasks.size())) / all);
  return group;
}

}  // namespace

int64_t chosen(const DocumentScores& scores) {
  const auto less = [](const RequestScore& a, const RequestScore& b) {
    return a.log_probability < b.log_probability;
  };
  return std::ranges::max_element(scores, less) - scores.begin();
}

int64_t chosen_by_character(const DocumentScores& scores, const std::vector<int64_t>& lengths) {
  DocumentScores each = scores;
  for (size_t i = 0; i < each.size(); ++i) each[i].log_probability /= static_cast<double>(lengths[i]);
  return chosen(each);
}

std::vector<Metric> task_metrics(const Task& task, const std::vector<DocumentScores>& scores) {
  TE_CHECK(!scores.empty() && scores.size() == task.documents.size(), "{}: {} scores of {} documents",
           task.name, scores.size(), task.documents.size());
  switch (task.kind) {
    case TaskKind::multiple_choice:
      return choice_metrics(task, scores);
    case TaskKind::last_word:
      return last_word_metrics(scores);
    case TaskKind::rolling:
      return rolling_metrics(task, scores);
  }
  return {};
}

ordered_json item_record(const Task& task, const Document& document, const DocumentScores& scores) {
  ordered_json record = {{"task", task.name}, {"doc_id", document.id}};
  ordered_json responses = ordered_json::array();
  for (const RequestScore& score : scores) {
    responses.push_back(task.kind == TaskKind::rolling
                            ? ordered_json(score.log_probability)
                            : ordered_json{score.log_probability, score.is_argmax});
  }
  if (task.kind == TaskKind::multiple_choice) record["target"] = document.gold;
  record["filtered_resps"] = std::move(responses);
  const double sum = scores[0].log_probability;
  switch (task.kind) {
    case TaskKind::multiple_choice: {
      const Right judged = right(document, scores);
      record["acc"] = judged.acc;
      if (task.acc_norm) record["acc_norm"] = judged.acc_norm;
      break;
    }
    case TaskKind::last_word:
      record["perplexity"] = sum;
      record["acc"] = scores[0].is_argmax ? 1.0 : 0.0;
      break;
    case TaskKind::rolling:
      record["word_perplexity"] = {sum, document.words};
      record["byte_perplexity"] = {sum, document.bytes};
      record["bits_per_byte"] = {sum, document.bytes};
      break;
  }
  return record;
}

std::vector<GroupResult> group_results(const std::vector<EvaluatedTask>& tasks) {
  std::vector<GroupResult> groups;
  std::vector<const EvaluatedTask*> all;
  for (const std::string& group : mmlu_groups()) {
    std::vector<const EvaluatedTask*> members;
    std::vector<std::string> names;
    for (const EvaluatedTask& task : tasks) {
      if (task.task.group != group) continue;
      members.push_back(&task);
      names.push_back(task.task.name);
    }
    if (names.size() != mmlu_tasks(group).size()) continue;
    groups.push_back(pooled(group, members, names));
    all.insert(all.end(), members.begin(), members.end());
  }
  if (all.size() == mmlu_subjects().size()) groups.insert(groups.begin(), pooled("mmlu", all, mmlu_groups()));
  return groups;
}

ordered_json results_json(const std::vector<EvaluatedTask>& tasks, const ordered_json& config) {
  ordered_json results, groups, versions, shots, better, samples;
  ordered_json subtasks = ordered_json::object();
  const std::vector<GroupResult> pooled_groups = group_results(tasks);
  for (const GroupResult& group : pooled_groups) {
    ordered_json values = {
        {"name", group.name}, {"alias", alias(group.name)}, {"sample_len", group.documents}};
    add_metric(values, group.acc);
    results[group.name] = groups[group.name] = values;
    subtasks[group.name] = group.members;
    versions[group.name] = 2;
    better[group.name] = {{"acc", true}};
  }
  for (const EvaluatedTask& evaluated : tasks) {
    const Task& task = evaluated.task;
    ordered_json values = {
        {"name", task.name}, {"alias", alias(task.name)}, {"sample_len", task.documents.size()}};
    for (const Metric& metric : evaluated.metrics) {
      add_metric(values, metric);
      better[task.name][metric.name] = metric.higher_is_better;
    }
    results[task.name] = values;
    versions[task.name] = task.version;
    shots[task.name] = task.num_fewshot;
    samples[task.name] = {{"original", task.original}, {"effective", task.documents.size()}};
  }
  ordered_json out = {{"results", results}};
  if (!pooled_groups.empty()) out["groups"] = groups;
  out["group_subtasks"] = subtasks;
  out["versions"] = versions;
  out["n-shot"] = shots;
  out["higher_is_better"] = better;
  out["n-samples"] = samples;
  out["config"] = config;
  return out;
}

}  // namespace te::generate
