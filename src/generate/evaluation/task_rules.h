// How the tasks of lm-evaluation-harness make requests of their data. Each function takes one record in the form in
// which the task's authors or Hugging Face publish it, or a line of te-train's own form
//   {"context": "...", "choices": ["...", ...], "gold": 0}
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"
#include "text/readers/json_records.h"

namespace te::generate {

/// A published task, but mmlu (mmlu.h).
struct TaskRule {
  const char* name;
  TaskKind kind;
  bool acc_norm;
  double version;
  std::vector<const char*> files;  ///< names of the published data, tried after NAME.jsonl
  /// The document without its id. UserError "FILE:LINE: ..." when the record is no such thing.
  Document (*make)(const text::JsonRecord& record);
};

/// Null for a name that no task has.
const TaskRule* find_task_rule(const std::string& name);
const std::vector<TaskRule>& task_rules();
Document make_own_document(const text::JsonRecord& record);

/// Requests (context, " " + choice) of a question.
Document multiple_choice(const std::string& context, const std::vector<std::string>& choices, int64_t gold);

std::string hellaswag_text(std::string text);  ///< without the marks of WikiHow
std::string wikitext_detokenized(
    const std::string& page);  ///< the spaces that wikitext's tokenizer added taken out

/// HellaSwag as a text of six lines a task: label and context, number of the right ending, four endings. The context
/// has lost where its unfinished sentence begins, which lm-evaluation-harness capitalizes: here it is what follows the
/// last end of a sentence, if it has no end itself.
Document hellaswag_of_lines(const std::vector<std::string>& lines, const std::string& place);

}  // namespace te::generate
