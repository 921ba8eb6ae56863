// Rules of particular GPUs: FP8 recipes on GPUs without their GEMMs.
#include "config/validate_device.h"

#include <gtest/gtest.h>

#include "config_testing.h"

namespace te::config {
namespace {

/// The refusal of a config on a GPU, or "".
std::string refusal(int sm, const std::vector<std::string>& sets) {
  DeviceCaps caps = caps_of(sm);
  caps.gpu = fmt::format("NVIDIA X, sm_{}", sm);
  try {
    validate_for_device(small(sets), caps);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ValidateDevice, Fp8NeedsAda) {
  const char* const message =
      "precision.fp8: this GPU (NVIDIA X, sm_80) has no FP8; use off, an emulated recipe "
      "(precision.fp8_recipe: mxfp8 "
      "or nvfp4), or a GPU of compute capability 8.9 or newer";
  for (const char* recipe : {"delayed", "tensorwise", "rowwise", "blockwise"})
    EXPECT_EQ(refusal(80, {"precision.fp8=hybrid", fmt::format("precision.fp8_recipe={}", recipe)}), message);
  EXPECT_EQ(refusal(80, {}), "");
  for (const char* recipe : {"mxfp8", "nvfp4"})  // emulated: GEMMs multiply BF16 values
    EXPECT_EQ(refusal(80, {"precision.fp8=e4m3", fmt::format("precision.fp8_recipe={}", recipe)}), "")
        << recipe;
  for (const int sm : {89, 90, 100, 120})
    for (const char* recipe : {"delayed", "tensorwise"})
      EXPECT_EQ(refusal(sm, {"precision.fp8=hybrid", fmt::format("precision.fp8_recipe={}", recipe)}), "");
}

TEST(ValidateDevice, ScalesOfRowsAndBlocksNeedHopper) {
  for (const char* recipe : {"rowwise", "blockwise"}) {
    const std::vector<std::string> sets = {"precision.fp8=hybrid",
                                           fmt::format("precision.fp8_recipe={}", recipe)};
    EXPECT_EQ(refusal(90, sets), "");
    for (const int sm : {89, 100, 120}) {
      EXPECT_EQ(
          refusal(sm, sets),
          fmt::format(
              "precision.fp8_recipe {}: this GPU (NVIDIA X, sm_{}) has no FP8 GEMMs with several scales "
              "per tensor; use delayed or tensorwise, or a GPU of compute capability 9.0",
              recipe, sm));
    }
  }
  const std::string override =
      refusal(89, {"precision.fp8=hybrid", "precision.overrides=linear_fc2: blockwise"});
  EXPECT_EQ(override.find("precision.overrides blockwise: this GPU"), 0U) << override;
}

TEST(ValidateDevice, RulesOfAllGpus) {
  EXPECT_NE(refusal(80, {"model.kv_channels=264"}).find("at most 256 on a GPU"), std::string::npos);
  validate_for_device(small({"model.kv_channels=264", "precision.fp8=hybrid"}), DeviceCaps{});  // the CPU
}

}  // namespace
}  // namespace te::config
