// Rates of unknown GPUs, measured on the CPU.
#include "train/measured_rates.h"

#include <gtest/gtest.h>

#include <cmath>

namespace te::train {
namespace {

TEST(MeasuredRates, HasRatesOfGemmsAndCopies) {
  const std::optional<GpuModel> gpu = measured_rates(Context::cpu(), {.size = 64, .bytes = 1 << 20});
  ASSERT_TRUE(gpu);
  for (const double rate : {gpu->bf16, gpu->memory}) {
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e15);
  }
  EXPECT_EQ(gpu->fp8, 0);  // the CPU has no such GEMMs
}

TEST(MeasuredRates, NeedsFreeMemory) {
  EXPECT_FALSE(measured_rates(Context::cpu(), {.size = 64, .bytes = int64_t{1} << 50}));
}

}  // namespace
}  // namespace te::train
