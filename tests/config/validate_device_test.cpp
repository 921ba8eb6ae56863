// Rules of particular GPUs: FP8 recipes on GPUs without their GEMMs.
#include "config/validate_device.h"

#include <gtest/gtest.h>

#include "config/precision_overrides.h"
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

TEST(ValidateDevice, Mxfp8AndNvfp4AreNativeOnBlackwell) {
  const auto on = [](int sm, const std::vector<std::string>& sets) {
    DeviceCaps caps = caps_of(sm);
    caps.gpu = "NVIDIA B200, sm_100";
    std::vector<std::string> all = {"precision.fp8=e4m3", "precision.fp8_recipe=mxfp8",
                                    "model.seq_length=128", "model.hidden_size=64",
                                    "model.ffn_hidden_size=128"};
    all.insert(all.end(), sets.begin(), sets.end());
    return for_device(small(all), caps);
  };
  for (const int sm : {80, 89, 90}) {
    EXPECT_FALSE(on(sm, {}).precision.mx_gemms);
    EXPECT_EQ(emulated_recipes(on(sm, {}).precision, 1), "mxfp8");
  }
  for (const int sm : {100, 120}) {
    EXPECT_TRUE(on(sm, {}).precision.mx_gemms);
    EXPECT_EQ(emulated_recipes(on(sm, {}).precision, 1), "");
    EXPECT_EQ(emulated_recipes(on(sm, {"precision.fp8_recipe=nvfp4"}).precision, 1), "");
    EXPECT_FALSE(on(sm, {"precision.fp8_recipe=delayed"}).precision.mx_gemms);
  }
  // Rows of codes start at 16 bytes.
  const std::vector<std::string> uneven = {"precision.fp8_recipe=nvfp4", "model.ffn_hidden_size=144"};
  EXPECT_FALSE(on(90, uneven).precision.mx_gemms);
  EXPECT_THROW(on(100, uneven), UserError);
  const std::vector<std::string> two_ranks = {"parallel.tensor=2", "training.micro_batch_size=1"};
  EXPECT_FALSE(on(90, two_ranks).precision.mx_gemms);
  try {
    on(100, two_ranks);
    ADD_FAILURE() << "chunks of 64 tokens";
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "training.micro_batch_size * model.seq_length / parallel.context is 128 tokens, but mxfp8 with "
        "parallel.tensor 2 and parallel.tensor_overlap 1 needs a multiple of 256 on this GPU (NVIDIA B200, "
        "sm_100)");
  }
  EXPECT_TRUE(on(100, {"parallel.tensor=2", "training.micro_batch_size=2"}).precision.mx_gemms);
}

TEST(ValidateDevice, RulesOfAllGpus) {
  EXPECT_NE(refusal(80, {"model.kv_channels=264"}).find("at most 256 on a GPU"), std::string::npos);
  validate_for_device(small({"model.kv_channels=264", "precision.fp8=hybrid"}), DeviceCaps{});  // the CPU
}

}  // namespace
}  // namespace te::config
