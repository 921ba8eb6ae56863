#include "core/gpu_models.h"

#include <gtest/gtest.h>

#include "core/device_caps.h"

namespace te {
namespace {

TEST(GpuModels, RatesAreThoseOfTheArchitecture) {
  for (const GpuModel& model : gpu_models()) {
    EXPECT_EQ(gpu_model(model.name), &model) << model.name;  // no name twice
    EXPECT_EQ(model.fp8 > 0, caps_of(model.sm).fp8) << model.name;
    EXPECT_NEAR(model.fp8 / model.bf16, model.fp8 > 0 ? 2.0 : 0.0, 0.05) << model.name;
    EXPECT_GT(model.bf16 / model.memory, 30.0) << model.name;
    EXPECT_LT(model.bf16 / model.memory, 450.0) << model.name;
  }
  EXPECT_EQ(gpu_model("NVIDIA H200")->bf16, 989.4e12);
  EXPECT_EQ(gpu_model("NVIDIA H200 MIG 1g.18gb"), nullptr);
  EXPECT_EQ(gpu_model(""), nullptr);
}

}  // namespace
}  // namespace te
