// From scores of requests to the numbers of a task, with the names, rules and files of lm-evaluation-harness.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "generate/evaluation/scorer.h"
#include "generate/evaluation/task.h"

namespace te::generate {

/// Scores of a document's requests; of a rolling request the sum of its windows.
using DocumentScores = std::vector<RequestScore>;

struct Metric {
  std::string name;  ///< acc, acc_norm, perplexity, word_perplexity, byte_perplexity, bits_per_byte
  double value = 0.0;
  std::optional<double> stderr_of_mean;  ///< none where lm-evaluation-harness has none
  bool higher_is_better = true;
};

/// What a task's documents come to. acc and acc_norm are means, with the sample standard error of the mean; perplexity
/// is exp of the mean negative log probability, its standard error that of the mean times perplexity (where
/// lm-evaluation-harness draws 100,000 bootstrap samples).
std::vector<Metric> task_metrics(const Task& task, const std::vector<DocumentScores>& scores);

/// The choice of a multiple-choice question: the most probable one, or by character; the first of equal ones.
int64_t chosen(const DocumentScores& scores);
int64_t chosen_by_character(const DocumentScores& scores, const std::vector<int64_t>& lengths);

/// A document's line of the file of items: doc_id, target, filtered_resps and the document's part of each metric.
nlohmann::ordered_json item_record(const Task& task, const Document& document, const DocumentScores& scores);

struct EvaluatedTask {
  Task task;
  std::vector<DocumentScores> scores;
  std::vector<Metric> metrics;
};

/// The mean of tasks that make a group, weighted by their documents, with their pooled standard error.
struct GroupResult {
  std::string name;
  std::vector<std::string> members;  ///< tasks, or groups
  Metric acc;
  int64_t documents = 0;
};
/// mmlu and its groups, where all of their tasks have been evaluated.
std::vector<GroupResult> group_results(const std::vector<EvaluatedTask>& tasks);

/// The file of results: results, groups, group_subtasks, versions, n-shot, higher_is_better, n-samples; `config` as
/// given.
nlohmann::ordered_json results_json(const std::vector<EvaluatedTask>& tasks,
                                    const nlohmann::ordered_json& config);

}  // namespace te::generate
