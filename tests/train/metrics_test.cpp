// Formatting of times; tests of whole runs cover the content of log files.
#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace te {
namespace {

TEST(HumanTime, MinutesOrHours) {
  EXPECT_EQ(train::human_time(0), "00:00");
  EXPECT_EQ(train::human_time(-3), "00:00");
  EXPECT_EQ(train::human_time(59.4), "00:59");
  EXPECT_EQ(train::human_time(59.6), "01:00");
  EXPECT_EQ(train::human_time(3599), "59:59");
  EXPECT_EQ(train::human_time(3723), "1:02:03");
  EXPECT_EQ(train::human_time(100 * 3600), "100:00:00");
}

TEST(MeanLoss, WithoutTokensIsNan) {
  EXPECT_EQ(train::mean_loss(6.0, 4), 1.5);
  EXPECT_TRUE(std::isnan(train::mean_loss(0.0, 0)));
}

}  // namespace
}  // namespace te
