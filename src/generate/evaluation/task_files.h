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
  int64_t limit = 0;        ///< documents of each task; 0: all
  int64_t num_fewshot = 5;  ///< of mmlu
};

/// The tasks of a list of names: published ones, mmlu and its groups and subjects, and own ones: NAME for NAME.jsonl of
/// the data folder, or the path of such a file. UserError for an unknown name, a name that is there twice, data that is
/// missing or malformed.
std::vector<Task> read_tasks(const std::vector<std::string>& names, const TaskOptions& options);

/// The first of the files that is there, also when compressed (.gz, .xz, .zst).
std::optional<std::filesystem::path> first_file(const std::filesystem::path& folder,
                                                const std::vector<std::string>& names);
/// All text of a file, decompressed.
std::string read_text(const std::filesystem::path& file);

}  // namespace te::generate
