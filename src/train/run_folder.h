// The folders of a run, logs and checkpoints: one run at a time writes there, and none over an earlier one unasked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/folder_lock.h"

namespace te::train {

struct RunFolderOptions {
  std::filesystem::path logs;         ///< logging.directory
  std::string csv;                    ///< empty: none
  bool jsonl = true;                  ///< metrics.jsonl
  std::filesystem::path checkpoints;  ///< checkpoint.directory
  bool saves = true;                  ///< checkpoints are written
};

class RunFolder {
 public:
  /// Makes and locks the folders. UserError when one cannot be written, or another run is there.
  explicit RunFolder(RunFolderOptions options);

  /// UserError when the folders hold an earlier run: logged steps, or checkpoints of a step.
  void refuse_earlier_run() const;
  /// UserError when checkpoints that --overwrite would remove are another run's.
  void refuse_other_run() const;
  /// Before a run that resumes from a checkpoint of checkpoint.directory, unnamed: warns when it is another run's.
  void warn_of_other_run() const;
  /// Before a run from step 1 on: removes logs and checkpoints of an earlier run, and says so. Checkpoints of step 0,
  /// which no run has saved, and `source` (the weights that the run starts with) stay.
  void remove_earlier_run(const std::filesystem::path& source) const;
  /// Before a run from step 1 on that nobody wanted to be resumed from nothing: keeps the logs under other names.
  void rotate_logs() const;
  /// Before a run that goes on after `step`: cuts off what the logs say of later steps.
  void truncate_logs(int64_t step) const;
  /// Warns of checkpoints of steps after `step`: the run will save those steps anew, and `keep` (checkpoint.keep) may
  /// delete them sooner.
  void warn_of_later_checkpoints(int64_t step, int64_t keep) const;

 private:
  struct Log {
    std::filesystem::path path;
    int64_t (*step_of)(std::string_view line);
  };
  std::vector<Log> logs() const;
  std::vector<std::filesystem::path> saved_checkpoints(int64_t after) const;
  /// The checkpoints lie outside the folder of the logs.
  bool has_own_checkpoint_directory() const;
  /// logging.directory of a run that has saved checkpoints here, and is not this one; empty where there is none. What
  /// lies in the folder of the logs is this run's.
  std::string other_run() const;

  RunFolderOptions options_;
  std::vector<FolderLock> locks_;
};

}  // namespace te::train
