// Checkpoints: a folder per saved step.
//
//   DIR/step_00000500/model.safetensors      main parameters, FP32, by name
//                     optimizer.safetensors  exp_avg and exp_avg_sq, FP32, by name
//                     fp8.safetensors        scales, amax history and ring position; only where there is FP8
//                                            state; metadata "operands": [[linear, role, fp8_max], ...]
//                     manifest.json          step, consumed samples, optimizer updates, the effective config
//   DIR/latest                               the name of the newest folder
//
// A checkpoint is written to a temporary folder, synced, renamed, and only then named in `latest`: a crash at
// any instant leaves the previous one good.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/device.h"
#include "model/model_stage.h"
#include "optim/optimizer.h"

namespace te::checkpoint {

/// Where a run stands between two optimizer steps.
struct Progress {
  int64_t step = 0;  ///< optimizer steps taken, skipped ones included
  int64_t consumed_samples = 0;
  int64_t updates = 0;  ///< steps that were not skipped: Adam's t
};

/// Returns the folder that was written. UserError when it cannot be (disk full, no permission) or a value is
/// not finite; then nothing is left behind.
std::filesystem::path save(const Context& context, const std::filesystem::path& directory,
                           const Progress& progress, model::ModelStage& model, optim::Optimizer& optimizer,
                           const std::string& config_yaml);

/// Fills model, optimizer and FP8 state from a step folder. UserError when a tensor is missing, superfluous
/// or of another shape. The caller casts and quantizes weights afterwards.
Progress load(const Context& context, const std::filesystem::path& step_folder, model::ModelStage& model,
              optim::Optimizer& optimizer);

/// The folder that DIR/latest names; empty when there is none. UserError when it names a folder that is not
/// there.
std::optional<std::filesystem::path> latest(const std::filesystem::path& directory);

}  // namespace te::checkpoint
