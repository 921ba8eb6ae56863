// Measured rates against the datasheet's.
#include <gtest/gtest.h>

#include "testing/testing.h"
#include "train/measured_rates.h"

namespace te::train {
namespace {

TEST(MeasuredRatesGpu, IsNearTheDatasheet) {
  TE_REQUIRE_GPU();
  const Context context = Context::cuda(0);
  const GpuModel* const model = gpu_model(context.info().name);
  if (model == nullptr) GTEST_SKIP() << "unknown GPU model";
  const std::optional<GpuModel> measured = measured_rates(context);
  ASSERT_TRUE(measured);
  const auto expect_near = [](double rate, double peak) {
    EXPECT_GT(rate, 0.4 * peak);
    EXPECT_LT(rate, 1.1 * peak);
  };
  expect_near(measured->bf16, model->bf16);
  expect_near(measured->memory, model->memory);
  if (measured->fp8 > 0) expect_near(measured->fp8, model->fp8);
}

}  // namespace
}  // namespace te::train
