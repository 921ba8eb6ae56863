// Models with the recipe `blockwise` under sequence parallelism, whose tensor-parallel ranks gather FP8 values and
// scales: all losses, gradients and amaxes have the bits of a run that gathers BF16 rows, and the memory plan is not
// larger.
#include <cmath>

#include "gathered_blocks_run.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using parallel::ProcessGrid;

class GatheredBlocks : public ::testing::TestWithParam<BlocksLayout> {};

TEST_P(GatheredBlocks, HaveTheBitsOfBf16Rows) {
  const BlocksLayout& layout = GetParam();
  const int ranks = world().size();
  const config::Config config = config_of(layout, ranks);
  const Groups groups = Groups::connect(world(), Context::cpu(), ProcessGrid::of(ranks, ranks, 1, 1),
                                        {.use_tensor_copy_engines = layout.copies});
  const Context context = Context::cpu();
  BlocksModel in_fp8(context, config, layout, groups),
      in_bf16(context, config, layout, groups, quantizes_all_tokens(config));
  EXPECT_LE(in_fp8.planned(), in_bf16.planned());
  const BlocksTrace with = in_fp8.run(), without = in_bf16.run();
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.evaluated, without.evaluated);
  EXPECT_EQ(with.amax, without.amax);
  EXPECT_TRUE(with.gradients == without.gradients);
  for (const float gradient : with.gradients) ASSERT_TRUE(std::isfinite(gradient));
  // A layer gathers the inputs of qkv and fc1, and the output gradients of proj and fc2: in BF16 two bytes per value
  // each time that a pass computes it, in FP8 one byte per value and the scales for each layout that is read.
  const int64_t tokens = config.training.micro_batch_size * layout.seq, values = tokens * layout.hidden;
  const int64_t rowwise = values + (layout.hidden + 127) / 128 * tokens * 4,
                columnwise = values + values / 32;
  const bool recomputed = layout.recompute != Recompute::none, full = layout.recompute == Recompute::full;
  const int64_t fp8 = 4 * (rowwise + columnwise) + (full ? 2 * rowwise : 0),
                bf16 = 2 * values * (recomputed ? 6 : 4);
  EXPECT_EQ(with.training_bytes - without.training_bytes, config.model.num_layers * (fp8 - bf16));
  EXPECT_EQ(with.evaluation_bytes - without.evaluation_bytes,
            config.model.num_layers * (2 * rowwise - 4 * values));
  // The bytes that te-train --plan counts.
  const Groups planned = Groups::dry_run(ProcessGrid::of(ranks, ranks, 1, 1), world().rank());
  if (!layout.copies && !layout.deferred) {
    Gathers gathers(false);
    const Context tracing = Context::trace(gathers);
    BlocksModel(tracing, config, layout, planned).trace();
    EXPECT_EQ(gathers.bytes, with.training_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GatheredBlocks,
    ::testing::Values(BlocksLayout{.name = "gpt"},
                      BlocksLayout{.name = "llama", .family = Family::llama, .chunks = 2},
                      BlocksLayout{.name = "gpt_selective", .recompute = Recompute::selective, .chunks = 2},
                      BlocksLayout{.name = "llama_selective_bias",
                                   .family = Family::llama,
                                   .recompute = Recompute::selective,
                                   .bias = true,
                                   .scales = config::Fp8ScaleFormat::fp32},
                      BlocksLayout{.name = "gpt_full", .recompute = Recompute::full, .chunks = 2},
                      BlocksLayout{.name = "llama_wide", .family = Family::llama, .hidden = 192},
                      BlocksLayout{.name = "gpt_deferred", .chunks = 2, .deferred = true},
                      BlocksLayout{.name = "llama_deferred", .family = Family::llama, .deferred = true},
                      BlocksLayout{.name = "gpt_both", .chunks = 2, .both = true},
                      BlocksLayout{.name = "llama_both_selective_copies",
                                   .family = Family::llama,
                                   .recompute = Recompute::selective,
                                   .copies = true,
                                   .both = true},
                      BlocksLayout{.name = "gpt_copies", .chunks = 2, .copies = true},
                      BlocksLayout{.name = "llama_copies_selective",
                                   .family = Family::llama,
                                   .recompute = Recompute::selective,
                                   .copies = true},
                      BlocksLayout{.name = "llama_copies_deferred",
                                   .family = Family::llama,
                                   .chunks = 4,
                                   .copies = true,
                                   .deferred = true}),
    [](const auto& info) { return info.param.name; });

// Layers of realistic sizes on several numbers of ranks; a single rank plans them.
TEST(GatheredBlocksOf, ManyRanksNeedNoMoreMemory) {
  if (world().size() != 2) GTEST_SKIP() << "the plan does not depend on the job";
  const Context context = Context::cpu();
  for (const int ranks : {2, 4, 8})
    for (const Family family : {Family::gpt, Family::llama})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        for (const bool deferred : {false, true})
          for (const bool both : {false, true}) {
            if (deferred && recompute != Recompute::none) continue;
            const BlocksLayout layout{.family = family,
                                      .recompute = recompute,
                                      .deferred = deferred,
                                      .both = both,
                                      .hidden = 4096,
                                      .heads = 32};
            config::Config config = config_of(layout, ranks);
            config.model.seq_length = config.model.max_position_embeddings = 4096;
            const Groups groups = Groups::dry_run(ProcessGrid::of(ranks, ranks, 1, 1), 0);
            SCOPED_TRACE(fmt::format("{} ranks, recompute {}, deferred {}, both precisions {}", ranks,
                                     static_cast<int>(recompute), deferred, both));
            const int64_t in_fp8 = BlocksModel(context, config, layout, groups).planned(),
                          in_bf16 = BlocksModel(context, config, layout, groups, quantizes_all_tokens(config))
                                        .planned();
            EXPECT_LE(in_fp8, in_bf16 - (both ? 0 : 1));
          }
}

}  // namespace
}  // namespace te::testing
