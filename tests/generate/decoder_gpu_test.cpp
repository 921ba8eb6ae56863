// Compares the decoder on a GPU with the decoder on the CPU: prompts in one pass, then token by token.
#include "generate/generate_testing.h"
#include "generate/generator.h"
#include "testing/abilities.h"

namespace te::testing {
namespace {

using generate::Continuation;

class DecoderGpu : public ::testing::TestWithParam<ModelVariant> {
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
  config::Config config = tiny_config_of(GetParam());
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<float> exact = logits(cpu, config, source);
  // FP32: different summation order.
  EXPECT_LT(relative_error(logits(gpu, config, source), exact), 1e-5);
  // BF16: a sum that is rounded differently changes all later results by a step of 2^-9.
  config.precision.dtype = config::ComputeDType::bf16;
  const std::vector<float> bf16 = logits(gpu, config, source);
  EXPECT_LT(relative_error(bf16, logits(cpu, config, source)), 3e-2);
  EXPECT_LT(relative_error(bf16, exact), 4e-2);
  if (!device_caps(gpu).fp8) return;
  // FP8: the same with steps of 2^-4.
  config.precision.fp8 = config::Fp8Mode::hybrid;
  const std::vector<float> fp8 = logits(gpu, config, source);
  EXPECT_LT(relative_error(fp8, logits(cpu, config, source)), 1e-1);
  EXPECT_LT(relative_error(fp8, exact), 2e-1);
  EXPECT_GT(relative_error(fp8, bf16), 1e-3);
}

// Passes of one and two rows, with scales of rows and blocks.
TEST_P(DecoderGpu, Fp8WithScalesPerGroupMatchesTheCpu) {
  TE_REQUIRE_ABILITY(fp8_scale_groups);
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  for (const auto recipe : {config::Fp8Recipe::rowwise, config::Fp8Recipe::blockwise}) {
    config::Config config = tiny_config_of(GetParam());
    if (config.model.num_moe_experts > 0) {
      if (recipe == config::Fp8Recipe::rowwise) continue;  // refused
      config.model.hidden_size = 128, config.model.kv_channels = 32;
      config.model.moe_ffn_hidden_size = config.model.moe_shared_expert_intermediate_size = 128;
    }
    config.model.ffn_hidden_size = 64;
    TinyModel tiny(config);
    const MemorySource source(tiny, config);
    config.precision.dtype = config::ComputeDType::bf16;
    const std::vector<float> bf16 = logits(gpu, config, source);
    config.precision.fp8 = config::Fp8Mode::hybrid;
    config.precision.fp8_recipe = recipe;
    const std::vector<float> fp8 = logits(gpu, config, source);
    EXPECT_LT(relative_error(fp8, logits(cpu, config, source)), 1e-1) << static_cast<int>(recipe);
    EXPECT_GT(relative_error(fp8, bf16), 1e-3);
  }
}

// A step launched kernel by kernel and the replay of its CUDA graph give the same bits, at increasing positions.
TEST_P(DecoderGpu, CudaGraphsGiveTheSameBits) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  config::Config config = tiny_config_of(GetParam());
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::span<const int32_t> all(tokens);
  for (const bool fp8 : {false, true}) {
    if (fp8 && !device_caps(gpu).fp8) continue;
    config.precision.dtype = config::ComputeDType::bf16;
    config.precision.fp8 = fp8 ? config::Fp8Mode::hybrid : config::Fp8Mode::off;
    // `first` never has a graph of the step; `second` replays the graph that it captured before.
    ReadyDecoder second(gpu, config, source, {.batch = 2, .max_rows = 32});
    second.append({{0, all.first(3)}, {1, all.subspan(16, 3)}});
    second.append({{0, all.subspan(3, 1)}, {1, all.subspan(19, 1)}});
    for (size_t length = 4; length < 8; ++length) {
      ReadyDecoder first(gpu, config, source, {.batch = 2, .max_rows = 32});
      // Token by token after the same prompt, so that GEMMs of the same shapes compute the keys and values.
      first.append({{0, all.first(3)}, {1, all.subspan(16, 3)}});
      for (size_t i = 3; i < length; ++i) {
        first.get().clear_graphs();
        first.append({{0, all.subspan(i, 1)}, {1, all.subspan(16 + i, 1)}});
      }
      first.get().clear_graphs();
      const std::vector<Continuation> next = {{0, all.subspan(length, 1)}, {1, all.subspan(16 + length, 1)}};
      EXPECT_EQ(first.append(next), second.append(next)) << length;
    }
  }
}

// Prompts of many lengths, which are padded to a few shapes, and prompts that need several passes.
TEST_P(DecoderGpu, PromptsOfEveryLength) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0);
  config::Config config = tiny_config_of(GetParam());
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

// Compares scores of the GPU with those of the CPU: passes of 32 rows with chunks of 8, some rows without targets, with
// truncated sequences and a resized cache.
TEST_P(DecoderGpu, ScoresMatchTheCpu) {
  TE_REQUIRE_GPU();
  const Context cpu = Context::cpu(), gpu = Context::cuda(0);
  config::Config config = tiny_config_of(GetParam());
  config.training.micro_batch_size = config.training.global_batch_size = 4;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 6);
  const auto part = [&](int64_t sequence, int64_t from, int64_t count) {
    return std::span(tokens).subspan(static_cast<size_t>(sequence * 16 + from), static_cast<size_t>(count));
  };
  const auto scores = [&](const Context& context) {
    ReadyDecoder ready(context, config, source,
                       {.batch = 1, .max_rows = 32, .cache_tokens = 64, .score_rows = 8});
    generate::Decoder& decoder = ready.get();
    decoder.resize_cache(4, 16);
    std::vector<generate::ScoredContinuation> next;
    for (int64_t i = 0; i < 4; ++i) next.push_back({i, part(i, 0, 12), part(i, 9, 4)});
    std::vector<generate::TokenScore> all = decoder.score(context, next);
    for (int64_t i = 0; i < 4; ++i) {
      decoder.truncate(i, 5);
      next[static_cast<size_t>(i)] = {i, part(i, 5, 10), part(i, 6, 10)};
    }
    const auto more = decoder.score(context, next);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto expect_near = [&](double bound) {
    const auto actual = scores(gpu), wanted = scores(cpu);
    ASSERT_EQ(actual.size(), wanted.size());
    ASSERT_EQ(wanted.size(), 56u);
    for (size_t i = 0; i < wanted.size(); ++i)
      EXPECT_NEAR(actual[i].log_probability, wanted[i].log_probability, bound) << i;
  };
  expect_near(1e-4);
  // BF16 rounds different intermediate results: logits of about 1 change by a few 2^-8.
  config.precision.dtype = config::ComputeDType::bf16;
  expect_near(0.1);
}

// Compares passes of the decode megakernel with passes of separate ops, which differ in the summation order. Rows of
// weights are multiples of 128 bytes.
TEST_P(DecoderGpu, TheMegakernelGivesTheLogitsOfTheOps) {
  TE_REQUIRE_ABILITY(hopper_kernels);
  const Context gpu = Context::cuda(0);
  config::Config config = tiny_config_of(GetParam());
  if (config.model.num_moe_experts > 0) GTEST_SKIP() << "the megakernel has no experts";
  config.model.hidden_size = 128, config.model.kv_channels = 32, config.model.ffn_hidden_size = 384;
  config.model.init_method_std = 0.1;
  config.precision.dtype = config::ComputeDType::bf16;
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::span<const int32_t> all(tokens);
  for (const bool fp8 : {false, true}) {
    config.precision.fp8 = fp8 ? config::Fp8Mode::hybrid : config::Fp8Mode::off;
    TinyModel tiny(config);
    const MemorySource source(tiny, config);
    using generate::MegakernelMode;
    const auto logits = [&](MegakernelMode mode) {
      ReadyDecoder decoder(gpu, config, source, {.batch = 2, .max_rows = 32, .megakernel = mode});
      decoder.append({{0, all.first(3)}, {1, all.subspan(16, 5)}});
      std::vector<float> result;
      for (size_t i = 0; i < 9; ++i) {
        std::vector<Continuation> next = {{0, all.subspan(3 + i, 1)}};
        if (i % 4 != 3) next.push_back({1, all.subspan(21 + i, 1)});
        const std::vector<float> more = decoder.append(next);
        result.insert(result.end(), more.begin(), more.end());
      }
      EXPECT_EQ(decoder.get().megakernel_passes() > 0, mode != MegakernelMode::never);
      return result;
    };
    const std::vector<float> ops = logits(MegakernelMode::never), megakernel = logits(MegakernelMode::always),
                             faster = logits(MegakernelMode::where_faster);
    const double bound = fp8 ? 1e-1 : 3e-2;
    EXPECT_LT(relative_error(megakernel, ops), bound);
    EXPECT_EQ(megakernel, logits(MegakernelMode::always));
    // where_faster uses the megakernel for passes of one row, and for two rows only with FP8 weights.
    EXPECT_LT(relative_error(faster, ops), bound);
    EXPECT_EQ(faster == megakernel, fp8);
    EXPECT_NE(faster, ops);
  }
}

/// Each token uses all experts: the backends round differently, and with fewer some tokens would use others.
std::vector<ModelVariant> gpu_variants() {
  std::vector<ModelVariant> variants;
  for (const ModelVariant& variant : model_variants())
    for (const char* name : {"gpt", "llama", "nanochat"})
      if (std::string_view(variant.name) == name) variants.push_back(variant);
  variants.push_back({"experts", config::Family::llama, [](config::ModelConfig& m) {
                        set_experts(m);
                        m.moe_router_topk = m.num_moe_experts;
                        m.moe_ffn_hidden_size = 64, m.moe_shared_expert_intermediate_size = 32;
                      }});
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Variants, DecoderGpu, ::testing::ValuesIn(gpu_variants()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace te::testing
