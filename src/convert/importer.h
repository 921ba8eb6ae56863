// Writes a model of another program as a checkpoint of te-train: weights only, at step 0.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "convert/foreign_model.h"

namespace te::convert {

struct Converted {
  int64_t tensors = 0;  ///< tensors written
  int64_t files = 0;    ///< weight files written
  int64_t bytes = 0;    ///< bytes of weights written
  int64_t kept = 0;     ///< weights that an FP8 export keeps in high precision because of their shape
};

/// Called with the bytes written so far, between chunks of about kChunkBytes; may throw.
using OnProgress = std::function<void(int64_t bytes)>;

/// Writes DIRECTORY/step_00000000 and DIRECTORY/latest. BF16 parameters stay BF16, all others become FP32.
Converted write_checkpoint(const ForeignModel& model, const std::filesystem::path& directory,
                           const OnProgress& progress);

/// Writes DIRECTORY/model.yaml: the model section of a config that trains from the checkpoint.
void write_config_fragment(const ForeignModel& model, const std::filesystem::path& directory);

int64_t total_bytes(const ForeignModel& model);  ///< bytes that write_checkpoint() writes

}  // namespace te::convert
