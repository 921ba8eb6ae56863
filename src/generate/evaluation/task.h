// What a task of evaluation is, once its data has been read: documents, each with the requests that are put to the
// model and what is right. The rules are those of lm-evaluation-harness (EleutherAI), whose names and numbers are the
// standard.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace te::generate {

/// How probable is the continuation after the context?
struct Request {
  std::string context, continuation;
};

enum class TaskKind : uint8_t {
  multiple_choice,  ///< a request per choice, `gold` is the right one
  last_word,        ///< one request: is every token of it the most probable one?
  rolling           ///< one request without context: the probability of a whole text
};

struct Document {
  int64_t id = 0;  ///< its place in the data
  std::vector<Request> requests;
  std::vector<int64_t>
      choice_lengths;  ///< of multiple choice: characters of each choice, without the space before it
  int64_t gold = 0;
  int64_t words = 0, bytes = 0;  ///< of rolling: what perplexities are divided by
};

struct Task {
  std::string name;
  TaskKind kind = TaskKind::multiple_choice;
  bool acc_norm = true;     ///< multiple choice: acc_norm is reported beside acc
  double version = 1.0;     ///< of lm-evaluation-harness' definition; 0 for own tasks
  int64_t num_fewshot = 0;  ///< solved examples in front of each question
  std::string group;        ///< mmlu_stem, ... : whose mean it enters, or empty
  std::string file;         ///< where the documents come from
  int64_t original = 0;     ///< documents of the file; a limit may leave fewer in `documents`
  std::vector<Document> documents;
};

}  // namespace te::generate
