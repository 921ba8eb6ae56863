#include "config/recipe_traits.h"

#include <array>

namespace te::config {

const RecipeTraits& traits_of(Fp8Recipe recipe) {
  static constexpr auto traits = std::to_array<RecipeTraits>({
      {.history = true},                                                      // delayed
      {},                                                                     // tensorwise
      {.scale_groups = true},                                                 // rowwise
      {.scale_groups = true},                                                 // blockwise
      {.emulated = true, .mx = true, .multiple = 32, .format = DType::e4m3},  // mxfp8
      {.emulated = true, .mx = true, .format = DType::e2m1},                  // nvfp4
  });
  return traits[static_cast<size_t>(recipe)];
}

bool is_emulated(const PrecisionConfig& precision, Fp8Recipe recipe) {
  return traits_of(recipe).emulated && !(traits_of(recipe).mx && precision.mx_gemms);
}

int64_t multiple_of(const PrecisionConfig& precision, Fp8Recipe recipe) {
  const RecipeTraits& traits = traits_of(recipe);
  return traits.emulated && !is_emulated(precision, recipe) ? 32 : traits.multiple;
}

std::vector<std::string> stateless_recipes() {
  std::vector<std::string> names;
  for (const std::string_view name : names_of(Fp8Recipe{})) {
    Fp8Recipe recipe{};
    if (from_string(name, recipe) && !traits_of(recipe).history) names.emplace_back(name);
  }
  return names;
}

}  // namespace te::config
