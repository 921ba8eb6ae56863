// Samples during training: the other replicas wait longer than the watchdog's limit.
#include "train/samples.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

class SlowMaker : public train::SampleMaker {
 public:
  void plan(MemoryPlan&) override {}
  void bind(const parameters::ParameterStore&) override {}
  std::vector<train::Sample> make() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return {{.prompt = "a", .text = "b", .finish_reason = "length", .tokens = 1}};
  }
};

TEST(Samples, OtherReplicasWaitWithoutATimeLimit) {
  const double before = parallel::Watchdog::timeout();
  parallel::Watchdog::set_timeout(0.5);
  SlowMaker maker;
  const bool first = world().rank() == 0;
  const std::vector<train::Sample> samples = train::make_on_first_replica(maker, world(), first);
  EXPECT_EQ(samples.size(), first ? 1u : 0u);
  EXPECT_EQ(parallel::Watchdog::timeout(), 0.5);
  parallel::Watchdog::set_timeout(before);
}

}  // namespace
}  // namespace te::testing
