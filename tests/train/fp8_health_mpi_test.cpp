// Merged FP8 health is weighted by the number of values that each rank has counted.
#include "train/fp8_health.h"

#include <cmath>
#include <limits>

#include "testing/mpi.h"

namespace te::testing {
namespace {

TEST(Fp8HealthOfAJob, WeightsRanksByTheirCounts) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const int rank = world().rank(), ranks = world().size();
  train::Fp8Health own, uncounted;
  own.name = "counted";
  uncounted.name = "in BF16";
  own.amax = uncounted.amax = 1.0 + rank;
  own.scale = 16.0 / own.amax;
  if (rank == 0 && ranks > 1) uncounted.amax = kNone;
  // With several ranks the last one has counted nothing.
  const bool counts = rank == 0 || rank + 1 < ranks;
  own.values = counts ? 100.0 * (rank + 1) : 0.0;
  own.saturated = counts ? 0.25 : kNone;
  own.flushed = counts ? (rank == 0 ? 1.0 : 0.0) : kNone;
  uncounted.saturated = uncounted.flushed = kNone;
  const std::vector<train::Fp8Health> merged = train::merge_fp8_health(world(), {own, uncounted});
  ASSERT_EQ(merged.size(), 2u);
  double values = 0;
  for (int i = 0; i == 0 || i + 1 < ranks; ++i) values += 100.0 * (i + 1);
  EXPECT_EQ(merged[0].values, values);
  EXPECT_EQ(merged[0].saturated, 0.25);
  EXPECT_NEAR(merged[0].flushed, 100.0 / values, 1e-15);
  EXPECT_EQ(merged[0].amax, ranks);
  EXPECT_EQ(merged[0].scale, 16.0 / ranks);
  EXPECT_EQ(merged[1].amax, ranks);
  EXPECT_TRUE(std::isnan(merged[1].saturated) && std::isnan(merged[1].flushed));
  EXPECT_EQ(merged[1].values, 0.0);
}

}  // namespace
}  // namespace te::testing
