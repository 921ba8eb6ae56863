// Computes the metrics of a task from the scores of its requests, with the names, rules and files of
// lm-evaluation-harness.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "generate/evaluation/scorer.h"
#include "generate/evaluation/task.h"

namespace te::generate {

/// Scores of a document's requests; the score of a rolling request is the sum over its windows.
using DocumentScores = std::vector<RequestScore>;

struct Metric {
  std::string name;  ///< acc, acc_norm, perplexity, word_perplexity, byte_perplexity, bits_per_byte
  double value = 0.0;
  std::optional<double> stderr_of_mean;  ///< none if lm-evaluation-harness has none
  bool higher_is_better = true;
};

/// The metrics of a task. acc and acc_norm are means, with the sample standard error of the mean. perplexity is exp of
/// the mean negative log probability; its standard error is that of the mean times the perplexity
/// (lm-evaluation-harness draws 100,000 bootstrap samples instead).
std::vector<Metric> task_metrics(const Task& task, const std::vector<DocumentScores>& scores);

/// Index of the most probable choice, by log probability or by log probability per character; the first one if equal.
int64_t chosen(const DocumentScores& scores);
int64_t chosen_by_character(const DocumentScores& scores, const std::vector<int64_t>& lengths);

/// A document's line in the items file: doc_id, target, filtered_resps and the document's value of each metric.
nlohmann::ordered_json item_record(const Task& task, const Document& document, const DocumentScores& scores);

struct EvaluatedTask {
  Task task;
  std::vector<DocumentScores> scores;
  std::vector<Metric> metrics;
};

/// The mean over the tasks of a group, weighted by their numbers of documents, with the pooled standard error.
struct GroupResult {
  std::string name;
  std::vector<std::string> members;  ///< tasks or groups
  Metric acc;
  int64_t documents = 0;
};
/// Results of mmlu and its groups; only groups whose tasks have all been evaluated.
std::vector<GroupResult> group_results(const std::vector<EvaluatedTask>& tasks);

/// The content of the results file: results, groups, group_subtasks, versions, n-shot, higher_is_better, n-samples and
/// `config`.
nlohmann::ordered_json results_json(const std::vector<EvaluatedTask>& tasks,
                                    const nlohmann::ordered_json& config);

}  // namespace te::generate
