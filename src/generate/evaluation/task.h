// An evaluation task after its data has been read: documents, each with its requests to the model and the correct
// answer. The rules and names are those of lm-evaluation-harness (EleutherAI), so that results are comparable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace te::generate {

/// A request for the log probability of the continuation given the context.
struct Request {
  std::string context, continuation;
};

enum class TaskKind : uint8_t {
  multiple_choice,  ///< one request per choice; `gold` is the correct one
  last_word,        ///< one request; correct if every token is the most probable one
  rolling           ///< one request without context: the log probability of a text
};

struct Document {
  int64_t id = 0;  ///< index in the data
  std::vector<Request> requests;
  std::vector<int64_t>
      choice_lengths;  ///< multiple_choice: characters of each choice, without the leading space
  int64_t gold = 0;
  int64_t words = 0, bytes = 0;  ///< rolling: denominators of word and byte perplexity
};

struct Task {
  std::string name;
  TaskKind kind = TaskKind::multiple_choice;
  bool acc_norm = true;     ///< multiple_choice: also report acc_norm
  double version = 1.0;     ///< version of lm-evaluation-harness' definition; 0 for custom tasks
  int64_t num_fewshot = 0;  ///< solved examples before each question
  std::string group;        ///< mmlu_stem, ...: group whose mean includes the task, or empty
  std::string file;         ///< file of the documents
  int64_t original = 0;     ///< documents of the file; `documents` may have fewer because of a limit
  std::vector<Document> documents;
};

}  // namespace te::generate
