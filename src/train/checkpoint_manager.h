// Tracks the checkpoints of a run for the training loop: the newest, the last verified one, and failed saves.
// checkpoint::Saver writes them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/saver.h"
#include "parallel/world.h"

namespace te::train {

class CheckpointManager {
 public:
  /// `resumed`: the checkpoint that the run resumes from, empty in a new run. `kept`: the other checkpoints that it
  /// lists. Created on all ranks; the arguments must outlive it.
  CheckpointManager(std::unique_ptr<checkpoint::Saver> saver, parallel::World& world,
                    std::filesystem::path resumed, const checkpoint::KeptCheckpoints& kept);

  /// Saves between two steps, on all ranks. A write error is reported and the run continues; the next save tries again.
  /// With `blocking`, returns when the checkpoint is complete. UserError when the state must not be saved, or ranks are
  /// missing.
  void save(const checkpoint::Progress& progress, bool blocking);
  /// Like save(), for a checkpoint that is among the best, with this loss. The checkpoints of the steps in `drop` are
  /// deleted once it is complete.
  void save_best(const checkpoint::Progress& progress, bool blocking, double loss,
                 const std::vector<int64_t>& drop);
  /// Reports a background save that has completed or failed.
  void poll();
  /// Waits for a background save and reports it.
  void wait();
  /// Like wait(), after the last save. UserError on all ranks when it could not be written.
  void finish();
  /// Call after each good step. A checkpoint is verified once a step after it had a finite loss without a spike.
  void confirm_checkpoint();

  /// Waits for a background save and returns the last verified checkpoint, the same on every rank; empty if there is
  /// none. Collective.
  std::filesystem::path broadcast_last_verified();
  /// Returns the run to this step: later checkpoints are discarded, so that a resumed run does not pick them up.
  /// Collective.
  void rollback_to(int64_t step);

  // Known on rank 0 only, which alone learns whether all ranks have written their part. Decisions must use
  // broadcast_last_verified().
  const std::filesystem::path& newest() const { return newest_; }  ///< complete on disk
  const std::filesystem::path& last_verified() const { return last_verified_; }

 private:
  bool own(const std::filesystem::path& folder) const;
  void report_result(const std::function<std::optional<checkpoint::Saved>()>& ask);

  std::unique_ptr<checkpoint::Saver> saver_;
  parallel::World& world_;
  std::filesystem::path newest_, last_verified_;
  std::vector<int64_t> drop_;        ///< steps of checkpoints to delete after the next save
  std::optional<double> best_loss_;  ///< of the save in progress, if it is among the best
  bool under_way_ = false;
  bool verified_since_ = false;  ///< a good step followed the save in progress
  std::string failure_;          ///< of the last save; empty on success
};

}  // namespace te::train
