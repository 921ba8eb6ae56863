// gathered_blocks_mpi_test.cpp on GPUs, where communication overlaps GEMMs: reading FP8 values or scales before they
// arrive, or overwriting them during communication, would change losses and gradients. With one chunk, a run that
// gathers BF16 rows gives the same bits; with several chunks, a repeated run does.
#include "gathered_blocks_run.h"
#include "parallel/launch.h"
#include "testing/abilities.h"
#include "testing/mpi.h"
#include "train/execution.h"

namespace te::testing {
namespace {

using parallel::ProcessGrid;

constexpr int kRuns = 3;

void expect_same_bits(const BlocksTrace& actual, const BlocksTrace& expected) {
  EXPECT_EQ(actual.loss, expected.loss);
  EXPECT_EQ(actual.evaluated, expected.evaluated);
  EXPECT_EQ(actual.amax, expected.amax);
  EXPECT_TRUE(actual.gradients == expected.gradients);
}

void run_layout(BlocksLayout layout) {
  layout.hidden = 1024, layout.heads = 8, layout.seq = 512;
  config::Config config = config_of(layout, world().size());
  config.model.init_method_std = 0.02;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
  const Context context = parallel::open_cuda_device(world(), train::execution_options(config));
  const Groups groups =
      Groups::connect(world(), context, ProcessGrid::of(world().size(), world().size(), 1, 1),
                      train::connect_options(config));
  const auto run = [&](std::unique_ptr<fp8::Recipe> recipe) {
    return BlocksModel(context, config, layout, groups, std::move(recipe)).run();
  };
  const BlocksTrace expected = run(layout.chunks == 1 ? quantizes_all_tokens(config) : nullptr);
  for (int i = 0; i < kRuns; ++i) expect_same_bits(run(nullptr), expected);
}

TEST(GatheredBlocksGpu, HaveTheSameBits) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  if (world().size() == 1) GTEST_SKIP() << "needs several tensor-parallel ranks";
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    for (const bool copies : {false, true})
      for (const int chunks : {1, world().size()}) {
        SCOPED_TRACE(
            fmt::format("recompute {}, copies {}, {} chunks", static_cast<int>(recompute), copies, chunks));
        run_layout({.family = Family::llama, .recompute = recompute, .chunks = chunks, .copies = copies});
      }
  run_layout({.family = Family::gpt, .deferred = true});
  run_layout({.family = Family::gpt, .both = true});
}

}  // namespace
}  // namespace te::testing
