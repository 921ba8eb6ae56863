// Converts records of data to requests by the rules of lm-evaluation-harness. Each function takes one record in the
// format that the task's authors or Hugging Face publish, or a line of a custom task:
//   {"context": "...", "choices": ["...", ...], "gold": 0}
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"
#include "text/readers/json_records.h"

namespace te::generate {

/// A published task other than MMLU (mmlu.h).
struct TaskRule {
  const char* name;
  TaskKind kind;
  bool acc_norm;
  double version;
  std::vector<const char*> files;  ///< names of the published data, tried after NAME.jsonl
  /// The document without its id. UserError "FILE:LINE: ..." if the record has another format.
  Document (*make)(const text::JsonRecord& record);
};

/// Null for an unknown name.
const TaskRule* find_task_rule(const std::string& name);
const std::vector<TaskRule>& task_rules();
Document make_own_document(const text::JsonRecord& record);

/// Requests (context, " " + choice) of a question.
Document multiple_choice(const std::string& context, const std::vector<std::string>& choices, int64_t gold);

std::string hellaswag_text(std::string text);  ///< removes the marks of WikiHow
/// Removes the spaces that wikitext's tokenizer added.
std::string wikitext_detokenized(const std::string& page);

}  // namespace te::generate
