// Saves checkpoints from all ranks of a job at once, in the background if wanted.
//
//   all ranks, training thread:  wait for the previous save | rank 0 makes the temporary folder | barrier |
//                                device-to-host copy of what this rank saves
//   all ranks, saving thread:    write and sync the rank's files, leave its part of the manifest
//   rank 0, saving thread:       wait for all parts (files, no MPI: that belongs to the training thread), write the
//                                manifest, sync, rename, replace `latest`, delete old checkpoints
//
// In the foreground the same runs on the training thread, and reads the device through a small buffer. A save that
// fails leaves the last good checkpoint and `latest` as they were; an error in the background is thrown by the next
// call of poll, save or finish.
//
// The training thread waits for the device and for the disk under the watchdog's guard: a save that stands still for
// parallel.timeout_seconds ends the job. One that goes on, however slowly, does not.
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

namespace te::checkpoint {

/// The ranks that save together.
struct Job {
  RankInfo who;
  int host_ranks = 1;             ///< of them on this host: they share its memory
  std::function<void()> barrier;  ///< called on the training thread only; may be empty for one rank
  int64_t timeout_seconds = 600;  ///< of rank 0 waiting for the others; 0: for ever
};

struct SaverOptions {
  std::filesystem::path directory;
  std::string config;                  ///< YAML, for the manifest
  std::vector<Dataset> datasets = {};  ///< for the manifest
  int64_t keep = 0;                    ///< checkpoints; 0: all
  bool optimizer = true;               ///< save moments
  bool background = true;              ///< while the host has memory for a copy of what is saved
};

/// A checkpoint that is complete on disk.
struct Saved {
  std::filesystem::path folder;
  int64_t bytes = 0;           ///< written by this rank
  double seconds = 0;          ///< from the call of save()
  double stalled_seconds = 0;  ///< of them on the training thread
};

class Saver {
 public:
  /// Removes what killed runs left in the directory (rank 0), and sets memory for background saves aside. The state
  /// must be bound to memory; context and state outlive the saver.
  Saver(const Context& context, SaverOptions options, TrainingState state, Job job = {});
  /// Waits for a save that is under way; its error is logged.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// All ranks, between two steps. `good` is never deleted, nor are the best checkpoints of progress.validation, whose
  /// first DIR/best then names; those of the steps in `drop` are. With `wait`, or where there is no memory for a copy,
  /// returns when the checkpoint is complete. WriteError when the disk takes no more, other UserErrors when trying
  /// again is no use, of this save (or of the previous one, in the background).
  void save(const Progress& progress, const std::filesystem::path& last_verified, bool wait = false,
            std::vector<int64_t> drop = {});
  /// A save that has been completed since the last call of poll or finish. Does not wait.
  std::optional<Saved> poll();
  /// The same after waiting for the save that is under way.
  std::optional<Saved> finish();

  /// UserError when a file of this rank would be larger than the process may write (ulimit -f); a warning where the
  /// disk has no room for one checkpoint.
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
  std::vector<SavedPiece> pieces_;
  std::vector<size_t> offsets_;   ///< of the pieces in copy_, in bytes
  HostBuffer copy_;               ///< of all pieces; empty: saves run in the foreground
  HostBuffer staging_;            ///< of kFetch elements, for the foreground
  std::vector<float> converted_;  ///< kFetch elements that are not stored as the device has them
  std::unique_ptr<Task> task_;
  std::thread thread_;
  std::optional<Saved> saved_;
};

}  // namespace te::checkpoint
