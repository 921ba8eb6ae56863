// Weights that a source stores in FP8, so that a base in FP8 can hold them without quantizing them again.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "parameters/parameter_store.h"

namespace te::parameters {

/// E4M3 codes of a rank's part of a weight [rows, cols], and the factors that dequantize them.
struct StoredCodes {
  std::vector<uint8_t> codes;
  int64_t group = 0;          ///< columns that share a factor; 0: all
  std::vector<float> scales;  ///< [rows, groups of columns]
};

/// Replaces the quantized layouts of a dropped value by the codes and their scales. Returns false, without a change, if
/// the layouts' scales cannot represent those of the codes. A columnwise layout with a scale per row keeps its values.
bool use_codes(const Context& context, const Parameter& parameter, const StoredCodes& stored);

}  // namespace te::parameters
