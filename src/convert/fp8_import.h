// Weights in FP8 of Hugging Face folders, in the formats of fp8_export.h: read as BF16, their codes times their
// multipliers. Private to src/convert.
#pragma once

#include <cstdint>

#include "convert/json_keys.h"
#include "convert/tensor_files.h"

namespace te::convert {

/// What quantization_config of a config.json says about the weights.
struct StoredFp8 {
  const char* multiplier =
      nullptr;  ///< what the name of a weight's multipliers adds to the weight's; null: no FP8
  int64_t block_rows = 0, block_cols = 0;  ///< of a multiplier; 0: the whole weight
};

/// UserError when the config has a quantization that is neither DeepSeek's blocks nor compressed-tensors with a
/// multiplier a weight.
StoredFp8 read_quantization(const JsonKeys& config);

/// Gives each E4M3 tensor its multipliers, and takes those, with the multipliers of inputs, out of the list of tensors.
/// UserError when they are missing or of another shape.
void attach_multipliers(TensorFiles& files, const StoredFp8& fp8);

}  // namespace te::convert
