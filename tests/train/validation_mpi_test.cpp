// The loss of a validation set equals that of one rank, for any number of microbatches. With sharded weights
// (parallel.shard: parameters) every pass has collectives, so ranks with different numbers of passes would deadlock.
#include "train/validation.h"

#include <fmt/format.h>

#include "data/data_testing.h"
#include "layout_cases.h"
#include "parallel/groups.h"
#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::Groups;
using parallel::ProcessGrid;

constexpr double kValidLossBound = 2e-6;  ///< for another summation order, as in layout_mpi_test.cpp

class Validation : public ::testing::Test {
 protected:
  Validation() {
    uint32_t state = 1;
    Documents documents(1);
    for (int i = 0; i < 400; ++i) {
      state = state * 1664525u + 1013904223u;
      documents[0].push_back(static_cast<int32_t>((state >> 16) % 101));
    }
    write_dataset(folder_ / "text", documents);
    parallel::Watchdog::set_timeout(60);  // a deadlocked job ends and fails
  }
  ~Validation() override { parallel::Watchdog::set_timeout(600); }

  /// Numbers of microbatches of two samples. The text has 25 samples, so the last microbatches are partial or empty.
  static constexpr int kMicrobatches[] = {1, 2, 3, 5, 10, 14};

  train::Batches batches(const train::StepRunner& runner, const config::Config& config,
                         int microbatches) const {
    train::BatchOptions options{.seq_length = config.model.seq_length,
                                .vocab_size = config.model.vocab_size,
                                .micro_batch_size = config.training.micro_batch_size,
                                .eval_microbatches = microbatches,
                                .context_rank = runner.split().rank(),
                                .context_ranks = runner.split().ranks()};
    options.data.train = {{1.0, folder_ / "text"}};
    options.data.valid = {{"all", options.data.train}, {"again", options.data.train}};
    return train::Batches(options);
  }

  std::vector<double> losses(const Case& c, const Groups& groups) const {
    const config::Config config = make_config(c);
    const Context context = Context::cpu();
    train::StepRunner runner(config, context, groups, data_parallel_of(c));
    runner.allocate();
    runner.initialize();
    if (groups.data().size() > 1) {
      EXPECT_GT(runner.model().parameters().buckets().size(), 2u);
    }
    std::vector<double> all;
    for (const int microbatches : kMicrobatches) {
      std::string bad_data;
      for (const train::SetLoss& loss :
           train::validation_losses(runner, batches(runner, config, microbatches),
                                    config.training.micro_batch_size, world(), bad_data))
        all.push_back(loss.loss);
      EXPECT_EQ(bad_data, "");
    }
    return all;
  }

  /// The losses of one rank, one sample at a time.
  std::vector<double> expected(const Case& c) const {
    config::Config config = make_config(c);
    config.training.micro_batch_size = 1;
    const Context context = Context::cpu();
    train::StepRunner runner(config, context);
    runner.allocate();
    runner.initialize();
    std::vector<double> all;
    for (const int microbatches : kMicrobatches) {
      const train::Batches set = batches(runner, config, 2 * microbatches);
      int64_t counted = 0;
      runner.begin_evaluation();
      for (int64_t sample = 0; sample < set.validation_samples(0); ++sample) {
        const data::Batch batch = set.validation(0, sample);
        counted += train::Batches::counted(batch.targets.data(), config.model.seq_length);
        runner.evaluate(train::Batches::view(batch));
      }
      const double loss = runner.finish_evaluation() / static_cast<double>(counted);
      all.insert(all.end(), {loss, loss});
    }
    return all;
  }

  TextFolder folder_;
};

TEST_F(Validation, WithShardedParametersEqualsThatOfOneRank) {
  if (world().size() > 4) GTEST_SKIP() << "two and four ranks cover all cases";
  const Case base{.name = "llama", .family = Family::llama};
  const std::vector<double> expected = this->expected(base);
  std::vector<Case> cases = {{.tensor = 1}, {.context = 2}};
  if (world().size() == 4) cases.insert(cases.end(), {{.tensor = 2}, {.pipeline = 2}});
  for (Case c : cases) {
    if (world().size() % (c.tensor * c.context * c.pipeline) != 0) continue;
    c.family = base.family;
    const Groups groups = Groups::connect(world(), Context::cpu(),
                                          ProcessGrid::of(world().size(), c.tensor, c.context, c.pipeline));
    for (const config::Shard shard : {config::Shard::parameters, config::Shard::optimizer}) {
      for (const bool overlap : {true, false}) {
        SCOPED_TRACE(fmt::format("tensor {}, context {}, pipeline {}, shard {}, overlap {}", c.tensor,
                                 c.context, c.pipeline, to_string(shard), overlap));
        c.shard = shard;
        c.data_overlap = overlap;
        const std::vector<double> actual = losses(c, groups);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i)
          EXPECT_NEAR(actual[i], expected[i], kValidLossBound * expected[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace te::testing
