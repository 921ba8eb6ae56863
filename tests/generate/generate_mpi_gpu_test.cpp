// Tensor-parallel ranks on GPUs compute the logits of the CPU.
#include "generate/generate_testing.h"
#include "parallel/launch.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

/// A llama whose number of key/value heads is divisible by 1, 2 and 4 ranks, as validation requires.
config::Config divisible_config() {
  config::Config config = tiny_config(config::Family::llama);
  config.model.num_query_groups = 4;
  return config;
}

TEST(TensorRanksGpu, LogitsOfOneRank) {
  TE_REQUIRE_GPU();
  const Context gpu = parallel::open_cuda_device(world());
  config::Config config = divisible_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::vector<float> all_expected = full_logits(tiny, config, tokens);
  config.parallel.tensor = world().size();
  const parallel::Groups groups = parallel::Groups::connect(
      world(), gpu, parallel::ProcessGrid::of(world().size(), world().size(), 1, 1));
  const std::span<const int32_t> all(tokens);
  const std::vector<float> expected(all_expected.begin(),
                                    all_expected.begin() + 16 * config.model.vocab_size);
  const auto logits = [&] {
    ReadyDecoder decoder(gpu, config, source, {.batch = 1, .max_rows = 16}, &groups);
    std::vector<float> result = decoder.append_all({{0, all.first(13)}});
    for (size_t i = 13; i < 16; ++i) {
      const std::vector<float> next = decoder.append({{0, all.subspan(i, 1)}});
      result.insert(result.end(), next.begin(), next.end());
    }
    return result;
  };
  EXPECT_LT(relative_error(logits(), expected), 1e-5);
  config.precision.dtype = config::ComputeDType::bf16;
  EXPECT_LT(relative_error(logits(), expected), 4e-2);
}

// Every rank has a shard of the vocabulary.
TEST(TensorRanksGpu, ScoresOfOneRank) {
  TE_REQUIRE_GPU();
  const Context gpu = parallel::open_cuda_device(world());
  config::Config config = divisible_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::span<const int32_t> all(tokens);
  const std::vector<generate::ScoredContinuation> next = {{0, all.first(15), all.subspan(1, 15)}};
  const generate::DecoderSizes sizes = {.batch = 1, .max_rows = 16, .score_rows = 8};
  ReadyDecoder single_rank(tiny.context(), config, source, sizes);
  const auto expected = single_rank.get().score(tiny.context(), next);
  config.parallel.tensor = world().size();
  const parallel::Groups groups = parallel::Groups::connect(
      world(), gpu, parallel::ProcessGrid::of(world().size(), world().size(), 1, 1));
  ReadyDecoder decoder(gpu, config, source, sizes, &groups);
  const auto scores = decoder.get().score(gpu, next);
  ASSERT_EQ(scores.size(), 15u);
  for (size_t i = 0; i < scores.size(); ++i)
    EXPECT_NEAR(scores[i].log_probability, expected[i].log_probability, 1e-4) << i;
}

}  // namespace
}  // namespace te::testing
