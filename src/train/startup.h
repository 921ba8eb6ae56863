// What stands between planned memory and the first step: the weights and the state that a run starts with.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "parallel/world.h"
#include "train/batches.h"
#include "train/step_runner.h"

namespace te::train {

struct StartPoint {
  checkpoint::Progress progress;     ///< step 0 in a run that is not resumed
  std::filesystem::path checkpoint;  ///< that is resumed; empty in a run that is not
  std::filesystem::path weights;     ///< where the weights come from: that, or checkpoint.init_from, or empty
  bool scales = false;               ///< the checkpoint had FP8 state
  std::vector<checkpoint::Dataset> datasets = {};  ///< that the checkpoint was trained on, as far as it says
};

/// The state of the runner as a checkpoint sees it.
checkpoint::TrainingState training_state(StepRunner& runner);

/// Gives a runner, whose memory is allocated, the weights and the state to start with, on all ranks alike: those of a
/// checkpoint (checkpoint.resume), else the weights of another run (init_from), else initial ones. The runner is then
/// ready for a step, but for FP8 scales that no checkpoint had: calibrate().
/// UserError (JobFailure in a job) when there is no such checkpoint, or it does not fit.
class Startup {
 public:
  Startup(const config::Config& config, const Context& context, parallel::World& world, StepRunner& runner);
  StartPoint run();
  /// In the middle of a run: the state of this checkpoint, which the run has saved.
  StartPoint rollback_to(const std::filesystem::path& folder);

 private:
  /// The checkpoint to be resumed; empty where there is none.
  std::filesystem::path find();
  StartPoint resume(std::filesystem::path folder);
  /// The weights of checkpoint.init_from.
  StartPoint load_weights();
  /// Reads a checkpoint into the runner. `damaged` tells, when it throws, whether the checkpoint is damaged on any
  /// rank.
  StartPoint load(const std::filesystem::path& path, const checkpoint::LoadOptions& options, bool& damaged);
  void report_changes(const std::string& before, int64_t step) const;
  /// The checkpoint before a damaged one; empty where there is none.
  std::filesystem::path previous(const std::filesystem::path& damaged);

  const config::Config& config_;  ///< whole: a checkpoint's config is compared with it
  const Context& context_;
  parallel::World& world_;
  StepRunner& runner_;
};

/// A fresh delayed recipe knows no amax, and at scale 1 every gradient below 2^-17 becomes zero in E5M2. How many that
/// are depends on the batch, whose size divides every gradient: in GPT-2 124M with 0.26 million tokens a step, all of
/// them in linear_qkv and linear_fc1 (docs/log/numerics.md). So the first `microbatches` of the first step in FP8, the
/// same on all data ranks, run before it for their amaxes alone; their gradients are dropped. The step's global batch
/// begins with `first_sample` and has `counted` targets.
void calibrate(StepRunner& runner, const Batches& batches, int64_t micro_batch_size, int64_t microbatches,
               int64_t first_sample, int64_t counted);

}  // namespace te::train
