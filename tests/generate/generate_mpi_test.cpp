// Tensor- and pipeline-parallel decoding: all ranks get the logits of one rank and choose the same tokens.
#include "generate/generate_testing.h"
#include "generate/generator.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

using generate::Generator;

/// A parallel layout: `pipeline` stages, and as many tensor-parallel ranks as the job allows.
struct Layout {
  config::Family family = config::Family::llama;
  int pipeline = 1;
  /// olmo2: a QK norm over the heads of all tensor-parallel ranks; gemma3: layers with different windows; experts:
  /// whole ones on every tensor-parallel rank.
  std::string_view variant{};
};
void PrintTo(const Layout& layout, std::ostream* out) {
  *out << (layout.variant.empty() ? config::to_string(layout.family) : layout.variant) << "_pp"
       << layout.pipeline;
}

class SharedModel : public ::testing::TestWithParam<Layout> {
 protected:
  static config::Config whole_config() {
    config::Config config = tiny_config(GetParam().family);
    config.model.num_layers = std::max(2, GetParam().pipeline + 1);
    config.model.tie_word_embeddings = true;
    if (GetParam().variant == "gemma3") set_gemma3(config.model);
    if (GetParam().variant == "experts") {
      set_experts(config.model);
      config.model.moe_ffn_hidden_size = 32,
      config.model.moe_shared_expert_intermediate_size = 16;  // for FP8
    }
    if (GetParam().variant == "olmo2") {
      config.model.qk_norm = config::QkNorm::projection;
      config.model.norm_placement = config::NormPlacement::post;
    }
    return config;
  }
  static void layout(config::Config& config) {
    config.parallel.pipeline = GetParam().pipeline;
    config.parallel.tensor = world().size() / GetParam().pipeline;
    config.parallel.sequence =
        GetParam().variant == "experts" && config.parallel.tensor > 1;  // as te-generate
  }
  static parallel::Groups connect(const Context& context) {
    const int pipeline = GetParam().pipeline, ranks = world().size();
    return parallel::Groups::connect(world(), context,
                                     parallel::ProcessGrid::of(ranks, ranks / pipeline, 1, pipeline));
  }
};

TEST_P(SharedModel, LogitsOfOneRank) {
  config::Config config = whole_config();
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  const Context& cpu = tiny.context();
  layout(config);
  const parallel::Groups groups = connect(cpu);
  ReadyDecoder decoder(cpu, config, source, {.batch = 2, .max_rows = 16}, &groups);
  const std::span<const int32_t> all(tokens);
  std::vector<float> first = decoder.append_all({{0, all.first(13)}, {1, all.subspan(16, 7)}});
  const auto vocab = static_cast<size_t>(config.model.vocab_size);
  const auto rows = [&](size_t begin, size_t count) {
    return std::vector<float>(expected.begin() + static_cast<std::ptrdiff_t>(begin * vocab),
                              expected.begin() + static_cast<std::ptrdiff_t>((begin + count) * vocab));
  };
  std::vector<float> wanted = rows(0, 13), second = rows(16, 7);
  wanted.insert(wanted.end(), second.begin(), second.end());
  EXPECT_LT(relative_error(first, wanted), 1e-5);
  for (size_t i = 13; i < 16; ++i)
    EXPECT_LT(relative_error(decoder.append({{0, all.subspan(i, 1)}}), rows(i, 1)), 1e-5);
}

// Every rank has a shard of the vocabulary; scores equal those of one rank, whichever shard contains the target. With
// the cap, all positive logits are equal, and argmax is the first one.
TEST_P(SharedModel, ScoresOfOneRank) {
  for (const double cap : {0.0, 1e-6}) {
    SCOPED_TRACE(cap);
    config::Config config = whole_config();
    config.model.final_logit_softcapping = cap;
    TinyModel tiny(config);
    const MemorySource source(tiny, config);
    const std::vector<int32_t> tokens = random_tokens(config, 1);
    const std::span<const int32_t> all(tokens);
    const std::vector<generate::ScoredContinuation> next = {{0, all.first(15), all.subspan(1, 15)}};
    const generate::DecoderSizes sizes = {.batch = 1, .max_rows = 16, .score_rows = 4};
    ReadyDecoder alone(tiny.context(), config, source, sizes);
    const auto expected = alone.get().score(tiny.context(), next);
    layout(config);
    const parallel::Groups groups = connect(tiny.context());
    ReadyDecoder decoder(tiny.context(), config, source, sizes, &groups);
    const auto scores = decoder.get().score(tiny.context(), next);
    ASSERT_EQ(scores.size(), 15u);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i].log_probability, expected[i].log_probability, 1e-5) << i;
      EXPECT_EQ(scores[i].is_argmax, expected[i].is_argmax) << i;
    }
  }
}

// FP8 scales are those of the full tensors, and every rank generates the same text.
TEST_P(SharedModel, EveryRankChoosesTheSameTokens) {
  for (const config::Fp8Mode fp8 : {config::Fp8Mode::off, config::Fp8Mode::hybrid}) {
    config::Config config = whole_config();
    config.model.ffn_hidden_size = 64;
    config.model.kv_channels = 16;
    config.model.vocab_size = 257;
    TinyModel tiny(config);
    const MemorySource source(tiny, config);
    config.precision.fp8 = fp8;
    layout(config);
    const parallel::Groups groups = connect(tiny.context());
    ReadyDecoder decoder(tiny.context(), config, source, {.batch = 2, .max_rows = 16}, &groups);
    const auto bytes = text::make_tokenizer("bytes");
    Generator generator(decoder.get(), *bytes,
                        {.sampling = {.temperature = 1.0, .seed = 3}, .max_tokens = 8});
    const auto results = generator.run(tiny.context(), {{1, 2, 3}, {4}, {5, 6}});
    for (const generate::Completion& result : results) {
      std::string tokens;
      for (const int32_t token : result.tokens) tokens += std::to_string(token) + " ";
      for (const std::string& other : world().gather_strings(tokens)) EXPECT_EQ(other, tokens);
      EXPECT_FALSE(result.tokens.empty());
    }
  }
}

/// The layouts that are possible with `ranks` ranks: the tiny models have 4 heads, llama 2 query groups.
std::vector<Layout> layouts_of(int ranks) {
  std::vector<Layout> layouts;
  for (const Layout& layout :
       {Layout{config::Family::gpt, 1}, Layout{config::Family::llama, 1}, Layout{config::Family::gpt, 2},
        Layout{config::Family::llama, 2}, Layout{config::Family::llama, 4},
        Layout{config::Family::llama, 1, "olmo2"}, Layout{config::Family::llama, 2, "olmo2"},
        Layout{config::Family::llama, 1, "gemma3"}, Layout{config::Family::llama, 2, "gemma3"},
        Layout{config::Family::llama, 4, "gemma3"}, Layout{config::Family::llama, 1, "experts"},
        Layout{config::Family::llama, 2, "experts"}}) {
    const int most = layout.family == config::Family::gpt ? 4 : 2;
    if (ranks % layout.pipeline == 0 && ranks / layout.pipeline <= most) layouts.push_back(layout);
  }
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(Cuts, SharedModel, ::testing::ValuesIn(layouts_of(world().size())),
                         [](const auto& info) { return ::testing::PrintToString(info.param); });

}  // namespace
}  // namespace te::testing
