// The recipe of docs/how-to/add-a-layer.md: after the page's diff, the config knows it and it quantizes.
#include <gtest/gtest.h>

#include "config/recipe_traits.h"
#include "fp8/scaling.h"

namespace te::fp8 {
#include "pages/recipe.inc"

namespace {

using config::Fp8Recipe;

TEST(AddedRecipe, IsInTheConfig) {
  Fp8Recipe recipe{};
  ASSERT_TRUE(config::from_string("mxfp8_headroom", recipe));
  EXPECT_EQ(recipe, Fp8Recipe::mxfp8_headroom);
  EXPECT_TRUE(config::traits_of(recipe).emulated);
  EXPECT_EQ(config::traits_of(recipe).multiple, 32);
  EXPECT_EQ(config::stateless_recipes().back(), "mxfp8_headroom");
}

TEST(AddedRecipe, Quantizes) {
  std::vector<float> x(32, 448.0f), plain(32), headroom(32);
  x[1] = 0x1p-9f;  // the smallest number next to the largest without headroom
  const auto quantize = [&](Fp8Recipe recipe, std::vector<float>& out) {
    GroupedOperand operand{.groups = {.x = {x.data(), DType::f32, {1, 32}}}, .operand = {}};
    operand.groups.rowwise = Tensor{out.data(), DType::f32, {1, 32}};
    make_scaling(recipe, {})->quantize(Context::cpu(), operand);
  };
  quantize(Fp8Recipe::mxfp8, plain);
  quantize(Fp8Recipe::mxfp8_headroom, headroom);
  EXPECT_EQ(plain, x);
  EXPECT_EQ(headroom[0], 448.0f);
  EXPECT_EQ(headroom[1], 0.0f);
}

}  // namespace
}  // namespace te::fp8
