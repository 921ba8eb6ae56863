// Writes a model of another program as a checkpoint of te-train: weights alone, at step 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "convert/foreign_model.h"

namespace te::convert {

struct Converted {
  int64_t tensors = 0;  ///< that were written
  int64_t files = 0;    ///< of weights
  int64_t bytes = 0;    ///< of weights that were written
  int64_t kept = 0;     ///< weights that an export in FP8 has left in high precision for their shape
};

/// Called with the bytes written so far, between pieces of some MiB; may throw.
using OnProgress = std::function<void(int64_t bytes)>;

/// DIRECTORY/step_00000000 and DIRECTORY/latest. Parameters stay BF16 where they are, all others become FP32.
Converted write_checkpoint(const ForeignModel& model, const std::filesystem::path& directory,
                           const OnProgress& progress);

/// DIRECTORY/model.yaml: the model section of a config for training from the checkpoint.
void write_config_fragment(const ForeignModel& model, const std::filesystem::path& directory);

int64_t total_bytes(const ForeignModel& model);  ///< that write_checkpoint will write

}  // namespace te::convert
