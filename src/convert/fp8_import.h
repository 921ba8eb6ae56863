// Reads FP8 weights of Hugging Face folders in the formats of fp8_export.h as BF16: codes times multipliers. Private to
// src/convert.
#pragma once

#include <cstdint>

#include "convert/json_keys.h"
#include "convert/tensor_files.h"

namespace te::convert {

/// The quantization of the weights by a config.json's quantization_config.
struct StoredFp8 {
  const char* multiplier =
      nullptr;  ///< suffix that makes a weight's name the name of its multipliers; null: no FP8
  int64_t block_rows = 0, block_cols = 0;  ///< size of a multiplier's block; 0: a weight or one of its rows
};

/// UserError if the quantization is neither DeepSeek's blocks nor compressed-tensors with a multiplier per weight, row
/// or block.
StoredFp8 read_quantization(const JsonKeys& config);

/// Attaches the multipliers to each E4M3 tensor, and removes them and the input multipliers from the list of tensors.
/// UserError if they are missing or have another shape, or if `fp8` is empty.
void attach_multipliers(TensorFiles& files, const StoredFp8& fp8);

}  // namespace te::convert
