#include "config/validate_device.h"

#include <algorithm>

#include "config/precision_overrides.h"
#include "config/recipe_traits.h"

namespace te::config {
namespace {

/// GPUs store scales of MXFP8 and NVFP4 in tiles of so many rows (kernels/gemm/matrix.h).
constexpr int64_t kTokensOfMxScales = 128;

}  // namespace

void validate_for_device(const Config& config, const DeviceCaps& caps) {
  const bool gpu = caps.sm > 0;
  validate_for_device(config, gpu);
  if (!gpu) return;
  for (const Fp8Recipe recipe : recipes_of(config.precision, config.model.num_layers)) {
    if (traits_of(recipe).emulated) continue;
    if (!caps.fp8) {
      user_error(
          "precision.fp8: this GPU ({}) has no FP8; use off, an emulated recipe (precision.fp8_recipe: mxfp8 "
          "or "
          "nvfp4), or a GPU of compute capability 8.9 or newer",
          caps.gpu);
    }
    if (traits_of(recipe).scale_groups && !caps.fp8_scale_groups) {
      user_error(
          "precision.{} {}: this GPU ({}) has no FP8 GEMMs with several scales per tensor; use delayed or "
          "tensorwise, or a GPU of compute capability 9.0",
          config.precision.fp8_recipe == recipe ? "fp8_recipe" : "overrides", to_string(recipe), caps.gpu);
    }
  }
}

Config for_device(Config config, const DeviceCaps& caps) {
  validate_for_device(config, caps);
  const std::vector<Fp8Recipe> recipes = recipes_of(config.precision, config.model.num_layers);
  const auto native = std::ranges::find_if(recipes, [](Fp8Recipe used) { return traits_of(used).mx; });
  if (!caps.mx || native == recipes.end()) return config;
  config.precision.mx_gemms = true;
  validate(config);  // the dimensions
  const ParallelConfig& parallel = config.parallel;
  const int64_t tokens = config.training.micro_batch_size * config.model.seq_length / parallel.context;
  // GEMMs next to collectives take chunks of the tokens.
  const int64_t multiple = kTokensOfMxScales * std::max(parallel.tensor, parallel.tensor_overlap);
  if (parallel.tensor > 1 && tokens % multiple != 0) {
    user_error(
        "training.micro_batch_size * model.seq_length / parallel.context is {} tokens, but {} with "
        "parallel.tensor {} and parallel.tensor_overlap {} needs a multiple of {} on this GPU ({})",
        tokens, to_string(*native), parallel.tensor, parallel.tensor_overlap, multiple, caps.gpu);
  }
  return config;
}

}  // namespace te::config
