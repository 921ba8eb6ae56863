// Selection of the best checkpoints, and early stopping.
#include "train/best_checkpoints.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace te {
namespace {

using checkpoint::Validation;
using train::BestCheckpoints;
using train::SetLoss;

BestCheckpoints best_of(int64_t keep, int64_t patience) {
  config::Config config;
  config.data.valid = {{"books", {}}, {"code", {}}};
  config.training.early_stopping_patience = patience;
  config.checkpoint.keep_best = keep;
  return BestCheckpoints(config);
}

TEST(BestCheckpoints, KeepsTheLowestLosses) {
  const BestCheckpoints best = best_of(2, 0);
  Validation state;
  EXPECT_TRUE(best.among_best(state, 3.0));
  EXPECT_EQ(best.add(state, 10, 3.0, true), std::vector<int64_t>{});
  EXPECT_EQ(best.add(state, 20, 2.0, false), std::vector<int64_t>{});
  EXPECT_FALSE(best.among_best(state, 3.5));
  EXPECT_FALSE(best.among_best(state, 3.0)) << "an equal loss is not better";
  EXPECT_FALSE(best.among_best(state, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(best.among_best(state, -std::numeric_limits<double>::infinity()));
  ASSERT_TRUE(best.among_best(state, 2.5));
  // Step 10 was saved only for being among the best, so it is dropped.
  EXPECT_EQ(best.add(state, 30, 2.5, true), std::vector<int64_t>{10});
  const std::vector<Validation::Best> expected = {{20, 2.0, false}, {30, 2.5, true}};
  EXPECT_EQ(state.best, expected);
  // Step 30 is dropped. Step 20, which was also saved periodically, stays.
  EXPECT_EQ(best.add(state, 40, 1.0, true), std::vector<int64_t>{30});
  EXPECT_EQ(best.add(state, 50, 0.5, true), std::vector<int64_t>{});
}

TEST(BestCheckpoints, RepeatedStepIsListedOnce) {
  const BestCheckpoints best = best_of(2, 0);
  Validation state;
  best.add(state, 10, 3.0, true);
  best.add(state, 20, 2.0, true);
  EXPECT_EQ(best.add(state, 20, 2.5, true), std::vector<int64_t>{});
  const std::vector<Validation::Best> expected = {{20, 2.5, true}, {10, 3.0, true}};
  EXPECT_EQ(state.best, expected);
}

TEST(BestCheckpoints, KeepsNoneByDefault) {
  EXPECT_FALSE(best_of(0, 0).among_best({}, 1.0));
}

TEST(EarlyStopping, StopsAfterPatience) {
  const BestCheckpoints best = best_of(0, 2);
  Validation state;
  best.evaluated(state, 3.0);
  best.evaluated(state, 3.0);  // not lower
  EXPECT_EQ(state.without_gain, 1);
  EXPECT_FALSE(best.exhausted(state));
  best.evaluated(state, 2.85);
  EXPECT_EQ(state.lowest, 2.85);
  EXPECT_EQ(state.without_gain, 0);
  best.evaluated(state, std::nan(""));
  EXPECT_FALSE(best.exhausted(state));
  best.evaluated(state, 2.9);
  EXPECT_TRUE(best.exhausted(state));
  EXPECT_FALSE(best_of(0, 3).exhausted(state));
  EXPECT_FALSE(best_of(0, 0).exhausted(state));
  EXPECT_EQ(best.describe(state),
            "the loss of validation set books has not improved in 2 evaluations "
            "(training.early_stopping_patience); the lowest loss is 2.8500");
}

TEST(DecidingLoss, IsThatOfTheNamedSet) {
  EXPECT_EQ(train::deciding_loss("books", {{"code", 1.0}, {"books", 2.0}}), 2.0);
  EXPECT_EQ(train::deciding_loss("books", {}), std::nullopt);
}

}  // namespace
}  // namespace te
