// Fixture of the tests that compare CPU ranks with a one-rank optimizer.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "compare_ranks.h"
#include "testing/mpi.h"

namespace te::testing {

class DistributedOptimizer : public ::testing::Test {
 protected:
  /// Runs the body on every grid of this world.
  template <class Body>
  void on_every_grid(Body&& body) {
    for (const ProcessGrid& grid : grids(world().size())) {
      SCOPED_TRACE(grid.str());
      const Groups groups = Groups::connect(world(), cpu_, grid);
      body(groups);
    }
  }

  /// Runs five steps of the ranks and of the reference; returns the largest relative difference of the gradient norms.
  double compare(const Groups& groups, const Case& c, const Tolerance& tolerance) {
    SCOPED_TRACE(c.str());
    Rank rank(cpu_, groups, c), reference(cpu_, single_, c);
    expect_equal(rank, Expected(reference), {});  // initial values
    double difference = 0;
    for (int step = 1; step <= kSteps; ++step) {
      rank.step(step);
      reference.step_with_sums(step, groups.grid());
      const optim::StepStatus actual = rank.optimizer().status(), expected = reference.optimizer().status();
      difference = std::max(difference, std::abs(double{actual.grad_norm} / expected.grad_norm - 1));
      EXPECT_EQ(actual.loss_sum, expected.loss_sum);
      EXPECT_EQ(actual.skipped, 0);
    }
    expect_equal(rank, Expected(reference), tolerance);
    expect_padding_zero(rank);
    expect_same_status(rank);
    return difference;
  }

  /// Checks that StepStatus is bitwise equal on every rank.
  void expect_same_status(Rank& rank) {
    const optim::StepStatus status = rank.optimizer().status();
    const std::string bytes(reinterpret_cast<const char*>(&status), sizeof(status));
    for (const std::string& other : world().gather_strings(bytes)) EXPECT_EQ(other, bytes);
  }

  const Context cpu_ = Context::cpu();
  const Groups single_ = Groups::single();
};

inline constexpr ReadyOrder kOrders[] = {ReadyOrder::nothing, ReadyOrder::descending, ReadyOrder::ascending,
                                         ReadyOrder::shuffled, ReadyOrder::halves};

// A norm of n FP32 squares: FP64 sums are rounded to FP32 per rank and bucket, then summed in FP32; with at most 8
// ranks and 7 buckets at most 15 consecutive roundings, each 2^-24 of the sum. The square root halves it.
inline constexpr double kNormBound = 15.0 / (1 << 24);

}  // namespace te::testing
