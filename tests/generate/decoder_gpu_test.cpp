// The decoder on a GPU against the same decoder on the CPU: prompts in one pass, then token by token.
#include "generate/generate_testing.h"
#include "generate/generator.h"

namespace te::testing {
namespace {

using generate::Continuation;

class DecoderGpu : public ::testing::TestWithParam<config::Family> {
 protected:
  /// Logits of two sequences of 16 tokens, after prompts of 9 and 5.
  static std::vector<float> logits(const Context& context, const config::Config& config,
                                   const MemorySource& source) {
    ReadyDecoder decoder(context, config, source, {.batch = 2, .max_rows = 32});
    const std::vector<int32_t> tokens = random_tokens(config, 1);
    const std::span<const int32_t> all(tokens);
    std::vector<float> result = decoder.append_all({{0, all.first(9)}, {1, all.subspan(16, 5)}});
    for (size_t i = 0; i < 11; ++i) {
      std::vector<Continuation> next = {{1, all.subspan(21 + i, 1)}};
      if (i < 7) next.push_back({0, all.subspan(9 + i, 1)});
      const std::vector<float> more = decoder.append(next);
      result.insert(result.end(), more.begin(), more.end());
    }
    return result;
  }
};

TEST_P(DecoderGpu, MatchesTheCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  config::Config config = tiny_config(GetParam());
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<float> exact = logits(cpu, config, source);
  // FP32: other orders of sums.
  EXPECT_LT(relative_error(logits(gpu, config, source), exact), 1e-5);
  // BF16: a sum that rounds the other way somewhere moves what follows by a step of 2^-9.
  config.precision.dtype = config::ComputeDType::bf16;
  const std::vector<float> bf16 = logits(gpu, config, source);
  EXPECT_LT(relative_error(bf16, logits(cpu, config, source)), 3e-2);
  EXPECT_LT(relative_error(bf16, exact), 4e-2);
  // FP8: likewise, of 2^-4.
  config.precision.fp8 = config::Fp8Mode::hybrid;
  const std::vector<float> fp8 = logits(gpu, config, source);
  EXPECT_LT(relative_error(fp8, logits(cpu, config, source)), 1e-1);
  EXPECT_LT(relative_error(fp8, exact), 2e-1);
  EXPECT_GT(relative_error(fp8, bf16), 1e-3);
}

// Prompts of every length, filled up to few shapes, and more rows than one pass holds.
TEST_P(DecoderGpu, PromptsOfEveryLength) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  config::Config config = tiny_config(GetParam());
  config.model.seq_length = config.model.max_position_embeddings = 100;
  config.training.micro_batch_size = config.training.global_batch_size = 1;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 5);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  const int64_t vocab = config.model.vocab_size;
  ReadyDecoder decoder(gpu, config, source, {.batch = 1, .max_rows = 48});
  for (const size_t length : {1, 2, 15, 16, 17, 47, 48, 49, 96, 97, 100}) {
    decoder.get().reset(0);
    const std::vector<float> last = decoder.append({{0, std::span(tokens).first(length)}});
    const auto row = expected.begin() + static_cast<std::ptrdiff_t>(length - 1) * vocab;
    EXPECT_LT(relative_error(last, {row, row + vocab}), 1e-5) << length;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderGpu, ::testing::Values(config::Family::gpt, config::Family::llama),
                         [](const auto& info) { return std::string(config::to_string(info.param)); });

}  // namespace
}  // namespace te::testing
