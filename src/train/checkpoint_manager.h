// The checkpoints of a run as the loop sees them: which is the newest, which is good, and what a failed save means. The
// writing itself is checkpoint::Saver's.
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
  /// `resumed`: the checkpoint that the run resumes from, empty in a fresh run, and `kept`: what it says of the others.
  /// All ranks; the arguments must outlive it.
  CheckpointManager(std::unique_ptr<checkpoint::Saver> saver, parallel::World& world,
                    std::filesystem::path resumed, const checkpoint::KeptCheckpoints& kept);

  /// Saves, all ranks between two steps. A disk that cannot be written is reported, and the run goes on: the next save
  /// tries again. With `blocking` returns when the checkpoint is complete. UserError when the state must not be saved,
  /// or ranks are missing.
  void save(const checkpoint::Progress& progress, bool blocking);
  /// The same of a checkpoint that is among the best, with this loss. It makes others of them superfluous: those of the
  /// steps in `drop` go once it is complete.
  void save_best(const checkpoint::Progress& progress, bool blocking, double loss,
                 const std::vector<int64_t>& drop);
  /// Reports a save that has been completed, or has failed, in the background.
  void poll();
  /// Waits for a save that is under way, and reports it.
  void wait();
  /// The same after the last save. UserError (on all ranks) when it could not be written.
  void finish();
  /// After each step: a checkpoint is good once a step from it was finite, and its loss no spike.
  void confirm_checkpoint();

  /// All ranks: waits for a save that is under way, and returns the last good checkpoint, the same one on every rank;
  /// empty where there is none.
  std::filesystem::path broadcast_last_verified();
  /// All ranks: the run goes back to this step. Later checkpoints are no longer its own, and a resumed run shall not
  /// find them first.
  void rollback_to(int64_t step);

  // What the leader knows: it alone learns whether all ranks have written their part, so the others' answers must not
  // decide anything (broadcast_last_verified() does).
  const std::filesystem::path& newest() const { return newest_; }  ///< complete on disk
  const std::filesystem::path& last_verified() const { return last_verified_; }

 private:
  bool own(const std::filesystem::path& folder) const;
  void report_result(const std::function<std::optional<checkpoint::Saved>()>& ask);

  std::unique_ptr<checkpoint::Saver> saver_;
  parallel::World& world_;
  std::filesystem::path newest_, last_verified_;
  std::vector<int64_t> drop_;        ///< steps of checkpoints that shall go with the next save
  std::optional<double> best_loss_;  ///< of the save that is under way, where it is among the best
  bool under_way_ = false;
  bool verified_since_ = false;  ///< a good step was taken after the save that is under way
  std::string failure_;          ///< of the last save; empty when it went well
};

}  // namespace te::train
