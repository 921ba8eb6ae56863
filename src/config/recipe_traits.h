// What the config knows about each FP8 recipe. Their quantization is in src/fp8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/dtype.h"

namespace te::config {

struct RecipeTraits {
  bool history = false;  ///< scales come from earlier steps; passes without FP8 state use tensorwise instead
  bool scale_groups = false;  ///< a tensor has a scale per row or block
  /// Values are rounded to the format, and GEMMs multiply them in precision.dtype, unless the GPU can multiply them
  /// (is_emulated()).
  bool emulated = false;
  bool mx = false;        ///< emulated, unless the GPU has DeviceCaps::mx
  int64_t multiple = 16;  ///< multiple_of(), if emulated
  /// Format of all operands, unless an override sets another one; empty: by precision.fp8.
  std::optional<DType> format{};
};

const RecipeTraits& traits_of(Fp8Recipe recipe);
/// Whether this run emulates the recipe.
bool is_emulated(const PrecisionConfig& precision, Fp8Recipe recipe);
/// What dimensions of GEMMs must be multiples of. Rows of NVFP4 codes, two per byte, start at multiples of 16 bytes.
int64_t multiple_of(const PrecisionConfig& precision, Fp8Recipe recipe);

/// The names of the recipes without history, which any pass can use.
std::vector<std::string> stateless_recipes();

}  // namespace te::config
