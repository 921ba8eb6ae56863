// Finds and reads the data of tasks.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "generate/evaluation/task.h"

namespace te::generate {

struct TaskOptions {
  std::string data;         ///< folder
  int64_t limit = 0;        ///< maximum number of documents of each task; 0: all
  int64_t num_fewshot = 5;  ///< solved examples before each question of MMLU
};

/// Reads the tasks of a list of names: published tasks, mmlu with its groups and subjects, and custom tasks: NAME for
/// NAME.jsonl in the data folder, or the path of such a file. UserError for an unknown or repeated name and for data
/// that is missing or malformed.
std::vector<Task> read_tasks(const std::vector<std::string>& names, const TaskOptions& options);

/// The first of the files that exists, possibly compressed (.gz, .xz, .zst).
std::optional<std::filesystem::path> first_file(const std::filesystem::path& folder,
                                                const std::vector<std::string>& names);

}  // namespace te::generate
