// The log and checkpoint folders of a run: one run at a time writes there, and an earlier run is not overwritten
// unasked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "train/folder_lock.h"

namespace te::train {

struct RunFolderOptions {
  std::filesystem::path logs;         ///< logging.directory
  std::filesystem::path checkpoints;  ///< checkpoint.directory
  bool saves = true;                  ///< checkpoints are written
};

class RunFolder {
 public:
  /// Creates and locks the folders. UserError when one cannot be written, or another run uses it.
  explicit RunFolder(RunFolderOptions options);

  /// UserError when the folders hold an earlier run: logged steps, or checkpoints of a step.
  void refuse_earlier_run() const;
  /// UserError when checkpoints that --overwrite would remove belong to another run.
  void refuse_other_run() const;
  /// For a run that resumes from checkpoint.directory without naming a checkpoint: warns if the checkpoint belongs to
  /// another run.
  void warn_of_other_run() const;
  /// For a run from step 1: removes logs and checkpoints of an earlier run, with a message. Keeps checkpoints of step
  /// 0, which no run has saved, and `sources` (the weights and the adapter that the run starts with; may be empty).
  void remove_earlier_run(const std::vector<std::filesystem::path>& sources) const;
  /// For a run from step 1 that did not find a checkpoint to resume: renames the old logs to keep them.
  void rotate_logs() const;
  /// Makes a resumed checkpoint in checkpoint.directory the latest one: if the run ends before it saves, the next start
  /// must not resume a later checkpoint of the steps that it replaces.
  void make_latest(const std::filesystem::path& resumed) const;
  /// For a run that resumes after `step`: removes the log lines of later steps. `every`: steps per line. Warns if lines
  /// before them are missing.
  void truncate_logs(int64_t step, int64_t every) const;
  /// Call before writing a checkpoint. UserError when lock files were removed and another run uses a folder now.
  void check_locks();
  /// Warns of checkpoints after `step`: the run will save those steps again, and `keep` (checkpoint.keep) may delete
  /// them earlier.
  void warn_of_later_checkpoints(int64_t step, int64_t keep) const;

 private:
  struct Log {
    std::filesystem::path path;
    int64_t (*step_of)(std::string_view line);
  };
  std::vector<Log> logs() const;
  std::vector<std::filesystem::path> saved_checkpoints(int64_t after) const;
  /// Whether the checkpoint folder is outside the log folder.
  bool has_own_checkpoint_directory() const;
  /// logging.directory of another run that has saved checkpoints here; empty if there is none. Checkpoints inside the
  /// log folder belong to this run.
  std::string other_run() const;

  RunFolderOptions options_;
  std::vector<FolderLock> locks_;
};

}  // namespace te::train
