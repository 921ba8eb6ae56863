#include "config/validate_device.h"

#include "config/precision_overrides.h"
#include "config/recipe_traits.h"

namespace te::config {

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

}  // namespace te::config
