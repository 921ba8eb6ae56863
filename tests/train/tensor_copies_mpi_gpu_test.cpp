// parallel.transport copy on GPUs: losses and gradient norms equal those of NCCL within rounding for any number
// of chunks, and are bitwise reproducible.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "layout_cases.h"
#include "parallel/launch.h"
#include "random_steps.h"
#include "testing/gpu_supports.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using config::Transport;
using parallel::Groups;
using parallel::ProcessGrid;

constexpr int kCopySteps = 5;

config::Config make_tensor_config(Precision precision, Recompute recompute) {
  config::Config config = make_config({.family = Family::llama,
                                       .precision = precision,
                                       .tensor = world().size(),
                                       .sequence = true,
                                       .recompute = recompute});
  enlarge(config);
  return config;
}

/// Groups that connect NCCL take seconds, so all runs share them; each run registers its own memory.
class Runs {
 public:
  explicit Runs(const config::Config& config)
      : context_(parallel::open_cuda_device(world(), train::execution_options(config))),
        nccl_(connect(false)),
        copies_(connect(true)) {}

  /// Losses and gradient norms of some steps.
  std::vector<float> run(const config::Config& config) {
    const Groups& groups = config.parallel.tensor_copies() ? copies_ : nccl_;
    EXPECT_EQ(groups.tensor_peer_transport() != nullptr, config.parallel.tensor_copies());
    return run_random_steps(context_, config, groups, kCopySteps);
  }

 private:
  Groups connect(bool copies) {
    return Groups::connect(world(), context_, ProcessGrid::of(world().size(), world().size(), 1, 1),
                           {.use_tensor_copy_engines = copies});
  }

  Context context_;
  Groups nccl_, copies_;
};

/// Checks relative differences of losses and gradient norms: `first` for the first loss, `any` for all.
void expect_alike(const std::vector<float>& actual, const std::vector<float>& expected, double first,
                  double any) {
  ASSERT_EQ(actual.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i)
    worst = std::max(worst, std::fabs(double{actual[i]} - expected[i]) / std::fabs(expected[i]));
  if (world().leader()) std::printf("largest relative difference %.2e\n", worst);
  EXPECT_NEAR(actual[0], expected[0], first * expected[0]);
  EXPECT_LE(worst, any);
}

// Whole runs; recompute, which has additional communication, with two precisions only.
TEST(TensorCopiesGpu, MatchNcclAndAreReproducible) {
  TE_REQUIRE_GPU();
  if (world().size() == 1) GTEST_SKIP() << "no tensor parallelism";
  Runs runs(make_tensor_config(Precision::fp32_wide, Recompute::none));
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    for (const Precision precision : {Precision::fp32_wide, Precision::bf16_wide, Precision::delayed,
                                      Precision::rowwise, Precision::blockwise}) {
      if (recompute != Recompute::none && precision != Precision::delayed &&
          precision != Precision::blockwise)
        continue;
      // The bounds of layouts (docs/explanation/determinism.md): FP32's summation order, BF16's rounding, and the
      // effect on a gradient norm after some steps when values that differ in the last bit are quantized to FP8.
      const bool fp32 = precision == Precision::fp32_wide, fp8 = precision >= Precision::delayed;
      const double first = fp32 ? 2e-6 : 2e-3, any = fp32 ? 2e-5 : fp8 ? 0.1 : 2e-2;
      config::Config config = make_tensor_config(precision, recompute);
      if (!gpu_supports(config)) continue;
      const std::vector<float> nccl = runs.run(config);
      config.parallel.transport = Transport::copy;
      for (const int overlap : {1, world().size(), 2 * world().size()}) {
        SCOPED_TRACE(::testing::Message() << "precision " << static_cast<int>(precision) << ", recompute "
                                          << to_string(recompute) << ", overlap " << overlap);
        config.parallel.tensor_overlap = overlap;
        const std::vector<float> copies = runs.run(config);
        expect_alike(copies, nccl, first, any);
        EXPECT_EQ(runs.run(config), copies);
      }
    }
  }
}

}  // namespace
}  // namespace te::testing
