// Saves checkpoints from all ranks of a job in parallel, optionally in the background.
//
//   all ranks, training thread:  wait for the previous save | rank 0 creates the temporary folder | barrier |
//                                device-to-host copy of this rank's part
//   all ranks, saving thread:    write and sync the rank's files, write its manifest
//   rank 0, saving thread:       wait for all manifests (by files: only the training thread may use MPI), write the
//                                merged manifest, sync, rename, replace `latest`, delete old checkpoints
//
// In the foreground all of this runs on the training thread, which reads from the device through a small buffer. A save
// that fails does not change the previous checkpoint and `latest`. The next call of poll, save or finish throws an
// error of the background.
//
// A watchdog guard covers the training thread's waits for the device and the disk: a save without progress for
// parallel.timeout_seconds ends the job. A slow save with progress does not.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/rank_files.h"
#include "checkpoint/training_state.h"
#include "core/device.h"
#include "core/host_memory.h"

namespace te::checkpoint {

/// The job of a saver's rank.
struct Job {
  RankInfo who;
  int host_ranks = 1;                                ///< number of ranks on this host, which share its memory
  int64_t free_host_bytes = available_host_bytes();  ///< before any rank has allocated a copy
  std::function<void()> barrier;  ///< called only on the training thread; may be empty for one rank
  int64_t timeout_seconds = 600;  ///< limit for rank 0 to wait for the others; 0 is no limit
};

struct SaverOptions {
  std::filesystem::path directory;
  std::string config;                  ///< YAML, for the manifest
  std::vector<Dataset> datasets = {};  ///< for the manifest
  std::optional<Base> base = {};       ///< likewise
  int64_t keep = 0;                    ///< number of checkpoints to keep; 0 keeps all
  bool optimizer = true;               ///< save moments
  bool background = true;              ///< if the host has memory for a copy of the data
};

/// A checkpoint that is complete on disk.
struct Saved {
  std::filesystem::path folder;
  int64_t bytes = 0;           ///< written by this rank
  double seconds = 0;          ///< since the call of save()
  double stalled_seconds = 0;  ///< the part of `seconds` that blocked the training thread
};

class Saver {
 public:
  /// Removes temporary folders of killed runs (on rank 0) and allocates memory for background saves. The state must be
  /// bound to memory; context and state must outlive the saver.
  Saver(const Context& context, SaverOptions options, TrainingState state, Job job = {});
  /// Waits for a save in progress and logs its error.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Saves a checkpoint; all ranks call it between two steps. Then deletes old checkpoints and those of the steps in
  /// `drop`, but not `last_verified` and the best checkpoints of progress.validation; DIR/best names the first of
  /// these. Returns when the checkpoint is complete if `wait` is true, or if there is no memory for a copy. Throws the
  /// error of this save (or of the previous one in the background): WriteError if the disk failed, another UserError if
  /// a new attempt would fail, too.
  void save(const Progress& progress, const std::filesystem::path& last_verified, bool wait = false,
            std::vector<int64_t> drop = {});
  /// Returns a save that was completed since the last call of poll or finish. Does not wait.
  std::optional<Saved> poll();
  /// Like poll(), but waits for a save in progress.
  std::optional<Saved> finish();

  /// UserError if a file of this rank would exceed the process's limit (ulimit -f); a warning if the disk does not have
  /// enough space for one checkpoint.
  void check_limits() const;

  std::filesystem::path folder_of(int64_t step) const;
  bool background() const { return options_.background; }

 private:
  struct Task;
  void reserve();
  void run(Task& task);
  void write(Task& task);
  void remove_stale(const Task& task) const;
  void join();
  void wait_for_thread() const;

  const Context& context_;
  SaverOptions options_;
  TrainingState state_;
  Job job_;
  std::vector<SavedShard> shards_;
  std::vector<size_t> offsets_;   ///< byte offsets of the shards in copy_
  HostBuffer copy_;               ///< copy of all shards; empty if saves run in the foreground
  HostBuffer staging_;            ///< kFetch elements, for the foreground
  std::vector<float> converted_;  ///< kFetch elements, for shards that are converted for the file
  std::unique_ptr<Task> task_;
  std::thread thread_;
  std::optional<Saved> saved_;
};

}  // namespace te::checkpoint
