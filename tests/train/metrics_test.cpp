// Formatting of times; tests of whole runs cover the content of log files.
#include "train/metrics.h"
#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

TEST(MeanLoss, WithoutTokensIsNan) {
  EXPECT_EQ(train::mean_loss(6.0, 4), 1.5);
  EXPECT_TRUE(std::isnan(train::mean_loss(0.0, 0)));
}

TEST(MetricsWriter, OnlyKnownShareOfSpeedOfLight) {
  const testing::TemporaryFolder folder;
  {
    train::MetricsWriter writer({.directory = folder.path(), .train_steps = 2});
    writer.step({.step = 1, .seconds = 1, .speed_of_light = 0.625}, {}, 0);
    writer.step({.step = 2, .seconds = 1}, {}, 0);
  }
  const std::string text = testing::read_file(folder / train::kJsonlName);
  const size_t end = text.find('\n');
  EXPECT_EQ(parse_json(text.substr(0, end)).at("speed_of_light"), 0.625);
  EXPECT_FALSE(parse_json(text.substr(end + 1)).contains("speed_of_light"));
}

}  // namespace
}  // namespace te
