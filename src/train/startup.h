// Sets up the weights and the state that a run starts with, after its memory is planned and allocated.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "parallel/world.h"
#include "train/batches.h"
#include "train/step_runner.h"

namespace te::train {

struct StartPoint {
  checkpoint::Progress progress;                   ///< step 0 in a new run
  std::filesystem::path checkpoint;                ///< the resumed checkpoint; empty in a new run
  std::filesystem::path weights;                   ///< source of the weights: checkpoint, init_from or empty
  std::filesystem::path adapter = {};              ///< source of the adapter in a new run: adapter.init_from
  bool scales = false;                             ///< the checkpoint had FP8 state
  bool moments = true;                             ///< false: resumed without Adam moments
  std::vector<checkpoint::Dataset> datasets = {};  ///< that the checkpoint records
  std::map<std::string, uint64_t> hashes =
      {};  ///< WeightSource::hash() of what init_from names, by path; rank 0
};

/// Loads the initial weights and state into an allocated runner, on all ranks: a checkpoint (checkpoint.resume), the
/// weights of another run (init_from), or newly initialized weights. The runner is then ready for a step, except for
/// FP8 scales that no checkpoint had: calibrate(). UserError (JobFailure in a job) when the checkpoint does not exist
/// or does not fit.
class Startup {
 public:
  /// `base`: of a run that trains an adapter (find_base()).
  Startup(const config::Config& config, const Context& context, parallel::World& world, StepRunner& runner,
          const std::optional<checkpoint::Base>& base);
  StartPoint run();
  /// Rolls a running job back to a checkpoint that it has saved or resumed; `optimizer`: with its moments.
  StartPoint rollback_to(const std::filesystem::path& folder, bool optimizer);

 private:
  /// The checkpoint to resume from; empty if there is none.
  std::filesystem::path find();
  StartPoint resume(std::filesystem::path folder);
  /// The weights of checkpoint.init_from.
  void load_weights(StartPoint& start);
  /// The adapter of adapter.init_from.
  void load_adapter(StartPoint& start);
  /// Reads a checkpoint into the runner. When it throws, `damaged` is true if the checkpoint is damaged on any rank.
  StartPoint load(const std::filesystem::path& path, const checkpoint::LoadOptions& options, bool& damaged);
  /// Logs what has changed since the config `before`; a guard comparison that began with it is dropped.
  void report_changes(const std::string& before, checkpoint::Progress& progress) const;
  /// The checkpoint before a damaged one; empty if there is none.
  std::filesystem::path previous(const std::filesystem::path& damaged);

  const config::Config& config_;  ///< whole, to compare it with a checkpoint's config
  const Context& context_;
  parallel::World& world_;
  StepRunner& runner_;
  const std::optional<checkpoint::Base>& base_;
};

/// The weights that the run's adapter is trained on, on all ranks; empty without an adapter. Collective.
std::optional<checkpoint::Base> find_base(const config::Config& config, parallel::World& world);

/// Microbatches that fill the amax history before the first FP8 step.
inline constexpr int64_t kCalibrationPasses = 2;

/// Calibrates the scales of a delayed recipe before its first FP8 step. Without an amax history the scale is 1, and
/// gradients below 2^-17 underflow in E5M2. Every gradient is divided by the global batch size, so in GPT-2 124M with
/// 0.26M tokens per step all gradients of linear_qkv and linear_fc1 underflow (docs/log/numerics.md). The first
/// `microbatches` of the first FP8 step, the same on all data-parallel ranks, therefore run once only for their amaxes;
/// their gradients are discarded. The step's global batch starts at `first_sample` and has `counted` targets.
void calibrate(StepRunner& runner, const Batches& batches, int64_t micro_batch_size, int64_t microbatches,
               int64_t first_sample, int64_t counted);

}  // namespace te::train
