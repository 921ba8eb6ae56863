// Compares the decoder with the training forward pass on the same weights: a sequence that is extended token by token
// with the KV cache has the logits of the full sequence at every position.
//
// Bound: both are FP32 and differ only in the summation order of attention; the other tests of the model also use a
// relative error of 1e-5.
#include "generate/generate_testing.h"
#include "model/mixed_feed_forward.h"

namespace te::testing {
namespace {

using generate::Continuation;

constexpr double kBound = 1e-5;

class DecoderTest : public ::testing::TestWithParam<ModelVariant> {
 protected:
  config::Config config_of(int64_t batch) {
    config::Config config = tiny_config_of(GetParam());
    config.training.micro_batch_size = config.training.global_batch_size = batch;
    return config;
  }
  /// For lower precisions: each token uses all experts, because with fewer some tokens would use others after rounding.
  config::Config rounded_config_of(int64_t batch) {
    config::Config config = config_of(batch);
    if (config.model.num_moe_experts > 0) config.model.moe_router_topk = config.model.num_moe_experts;
    return config;
  }
  const Context cpu_ = Context::cpu();
};

std::vector<float> row_of(const std::vector<float>& logits, int64_t row, int64_t vocab) {
  return {logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab};
}

TEST_P(DecoderTest, TokenByTokenEqualsTheFullSequence) {
  const config::Config config = config_of(1);
  const int64_t vocab = config.model.vocab_size, seq = config.model.seq_length;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  for (const int64_t prompt : {int64_t{1}, int64_t{5}, seq}) {
    ReadyDecoder decoder(cpu_, config, source, {.batch = 1, .max_rows = 16});
    const std::span<const int32_t> all(tokens);
    std::vector<float> actual = decoder.append_all({{0, all.first(static_cast<size_t>(prompt))}});
    for (int64_t i = prompt; i < seq; ++i) {
      const std::vector<float> next = decoder.append({{0, all.subspan(static_cast<size_t>(i), 1)}});
      actual.insert(actual.end(), next.begin(), next.end());
    }
    ASSERT_EQ(actual.size(), expected.size());
    for (int64_t i = 0; i < seq; ++i)
      EXPECT_LT(relative_error(row_of(actual, i, vocab), row_of(expected, i, vocab)), kBound)
          << "position " << i << " after a prompt of " << prompt;
    EXPECT_EQ(decoder.get().length(0), seq);
  }
}

// Three sequences with prompts of different lengths, in passes that contain parts of several sequences, then one token
// of each at a time until the sequences reach their ends one after another.
TEST_P(DecoderTest, BatchOfSequences) {
  const config::Config config = config_of(3);
  const int64_t vocab = config.model.vocab_size, seq = config.model.seq_length;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 2);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  ReadyDecoder decoder(cpu_, config, source, {.batch = 3, .max_rows = 16});
  const auto part = [&](int64_t sequence, int64_t from, int64_t count) {
    return Continuation{sequence, std::span(tokens).subspan(static_cast<size_t>(sequence * seq + from),
                                                            static_cast<size_t>(count))};
  };
  std::vector<int64_t> lengths = {11, 3, 14};
  const auto check = [&](const std::vector<float>& logits, const std::vector<Continuation>& next) {
    ASSERT_EQ(logits.size(), next.size() * static_cast<size_t>(vocab));
    for (size_t i = 0; i < next.size(); ++i) {
      const int64_t sequence = next[i].sequence, position = decoder.get().length(sequence) - 1;
      EXPECT_LT(relative_error(row_of(logits, static_cast<int64_t>(i), vocab),
                               row_of(expected, sequence * seq + position, vocab)),
                kBound)
          << "sequence " << sequence << " position " << position;
    }
  };
  // The prompts, not in the order of the sequences.
  const std::vector<Continuation> prompts = {part(2, 0, 14), part(0, 0, 11), part(1, 0, 3)};
  check(decoder.append(prompts), prompts);
  for (;;) {
    std::vector<Continuation> next;
    for (int64_t s : {1, 2, 0}) {
      if (lengths[static_cast<size_t>(s)] < seq)
        next.push_back(part(s, lengths[static_cast<size_t>(s)]++, 1));
    }
    if (next.empty()) break;
    check(decoder.append(next), next);
  }
  // A slot that is reused keeps nothing of the previous sequence.
  decoder.get().reset(1);
  const std::vector<Continuation> again = {part(1, 0, 7)};
  check(decoder.append(again), again);
}

// Scales of the rowwise, blockwise and mxfp8 recipes do not depend on the other rows of a pass.
TEST_P(DecoderTest, Fp8WithScalesPerGroupAgreesWithTheForwardPass) {
  for (const auto recipe :
       {config::Fp8Recipe::rowwise, config::Fp8Recipe::blockwise, config::Fp8Recipe::mxfp8}) {
    config::Config config = rounded_config_of(2);
    if (config.model.num_moe_experts > 0 && recipe != config::Fp8Recipe::blockwise) continue;
    config.model.ffn_hidden_size = 64;
    config.precision.fp8 = config::Fp8Mode::hybrid;
    config.precision.fp8_recipe = recipe;
    TinyModel tiny(config);
    const MemorySource source(tiny, config);
    const std::vector<int32_t> tokens = random_tokens(config, 3);
    const std::vector<float> expected = full_logits(tiny, config, tokens);
    ReadyDecoder decoder(cpu_, config, source, {.batch = 2, .max_rows = 32});
    const std::span<const int32_t> all(tokens);
    std::vector<float> grown = decoder.append_all({{0, all.first(5)}});
    for (size_t i = 5; i < 16; ++i) {
      const std::vector<float> next = decoder.append({{0, all.subspan(i, 1)}});
      grown.insert(grown.end(), next.begin(), next.end());
    }
    EXPECT_LT(relative_error(grown, {expected.begin(), expected.begin() + grown.size()}), 1e-2);
  }
}

// A decoder that is bound to the weights of a training model follows their updates.
TEST_P(DecoderTest, BoundWeightsFollowTheTrainingModel) {
  const config::Config config = config_of(1);
  TinyModel tiny(config);
  const std::vector<int32_t> tokens = random_tokens(config, 1);
  const parallel::Groups single = parallel::Groups::single();
  generate::Decoder decoder(config, single, {.batch = 1, .max_rows = 16});
  generate::Decoder with_weights(config, single, {.batch = 1, .max_rows = 16});
  MemoryPlan plan, plan_with_weights;
  decoder.plan(plan, cpu_, false);
  with_weights.plan(plan_with_weights, cpu_);
  const int64_t ones = config.model.norm_gain ? 0 : 256;  // the alignment of a planned tensor
  EXPECT_EQ(plan_with_weights.total_bytes() - plan.total_bytes(),
            with_weights.parameters().flat_size() * static_cast<int64_t>(sizeof(float)) + ones);
  const DeviceBuffer memory = plan.allocate(cpu_);
  decoder.bind(cpu_, tiny.model().parameters());
  for (int round = 0; round < 2; ++round) {
    const MemorySource source(tiny, config);
    ReadyDecoder own(cpu_, config, source, {.batch = 1, .max_rows = 16});
    decoder.reset(0);
    const std::vector<Continuation> next = {{0, tokens}};
    const std::span<const float> logits = decoder.append_all(cpu_, next);
    EXPECT_EQ(std::vector<float>(logits.begin(), logits.end()), own.append_all(next)) << round;
    for (parameters::Parameter& parameter : tiny.model().parameters().parameters()) {
      auto* values = parameter.value.as<float>();
      for (int64_t i = 0; i < parameter.value.numel(); ++i) values[i] *= 1.25f;
    }
  }
}

TEST_P(DecoderTest, Fp8AgreesWithTheFp8ForwardPass) {
  config::Config config = rounded_config_of(2);
  config.precision.fp8 = config::Fp8Mode::hybrid;
  config.precision.fp8_recipe = config::Fp8Recipe::tensorwise;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 3);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  // The same rows in one pass have the same scales; the different summation order of attention may change the rounding
  // of a value.
  ReadyDecoder decoder(cpu_, config, source, {.batch = 2, .max_rows = 32});
  const std::span<const int32_t> all(tokens);
  const std::vector<float> full = decoder.append_all({{0, all.first(16)}, {1, all.subspan(16)}});
  EXPECT_LT(relative_error(full, expected), 1e-2);
  // A prompt with rows padded to 16, then single tokens: the scales differ, so the error of FP8 (2^-4 per value)
  // against the exact model bounds the difference.
  config::Config exact = config;
  exact.precision.fp8 = config::Fp8Mode::off;
  TinyModel reference(exact);
  const std::vector<float> unrounded = full_logits(reference, exact, tokens);
  decoder.get().reset(0);
  std::vector<float> grown = decoder.append_all({{0, all.first(5)}});
  for (size_t i = 5; i < 16; ++i) {
    const std::vector<float> next = decoder.append({{0, all.subspan(i, 1)}});
    grown.insert(grown.end(), next.begin(), next.end());
  }
  const double error = relative_error(grown, {unrounded.begin(), unrounded.begin() + grown.size()});
  EXPECT_LT(error, 0.2);
  EXPECT_GT(error, 1e-3);  // proves that FP8 was used
}

TEST_P(DecoderTest, SixteenBitTypesAreCloseToFp32) {
  config::Config config = rounded_config_of(2);
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 4);
  const std::vector<float> expected = full_logits(tiny, config, tokens);
  const std::span<const int32_t> all(tokens);
  const auto error = [&](config::ComputeDType dtype) {
    config.precision.dtype = dtype;
    ReadyDecoder decoder(cpu_, config, source, {.batch = 2, .max_rows = 32});
    return relative_error(decoder.append_all({{0, all.first(16)}, {1, all.subspan(16)}}), expected);
  };
  const double bf16 = error(config::ComputeDType::bf16), fp16 = error(config::ComputeDType::fp16);
  EXPECT_LT(bf16, 4e-2);  // dozens of consecutive rounding errors of 2^-9
  EXPECT_GT(bf16, 1e-4);
  EXPECT_LT(fp16, 5e-3);  // dozens of rounding errors of 2^-12
  EXPECT_GT(fp16, 1e-5);
}

TEST_P(DecoderTest, RefusesInvalidTokensAndLengths) {
  const config::Config config = config_of(1);
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  ReadyDecoder decoder(cpu_, config, source, {.batch = 1, .max_rows = 16});
  const std::vector<int32_t> tokens(17, 1), wrong = {static_cast<int32_t>(config.model.vocab_size)};
  EXPECT_THROW(decoder.append({{0, tokens}}), UserError);
  EXPECT_EQ(decoder.get().length(0), 0);
  EXPECT_THROW(decoder.append({{0, wrong}}), InternalError);
  EXPECT_THROW(decoder.append({{0, {}}}), InternalError);
}

// Layers plan and use the activations of their own feed-forward, of which the widest needs most memory.
TEST(DecoderLayers, MayHaveDifferentFeedForwards) {
  const Context cpu = Context::cpu();
  for (const auto& [fp8, bound] :
       {std::pair{config::Fp8Mode::off, kBound}, std::pair{config::Fp8Mode::hybrid, 1e-2}}) {
    config::Config config = mixed_config(config::Family::llama);
    config.precision.fp8 = fp8;
    config.precision.fp8_recipe = config::Fp8Recipe::rowwise;  // scales of a token do not depend on others
    TinyModel tiny(config, nullptr, Context::cpu(), model::mixed_feed_forward);
    const MemorySource source(tiny, config);
    const std::vector<int32_t> tokens = random_tokens(config, 3);
    const std::vector<float> expected = full_logits(tiny, config, tokens);
    ReadyDecoder decoder(cpu, config, source, {.batch = 2, .max_rows = 32}, nullptr,
                         model::mixed_feed_forward);
    const std::span<const int32_t> all(tokens);
    std::vector<float> grown = decoder.append_all({{0, all.first(5)}});
    for (size_t i = 5; i < 16; ++i) {
      const std::vector<float> next = decoder.append({{0, all.subspan(i, 1)}});
      grown.insert(grown.end(), next.begin(), next.end());
    }
    EXPECT_LT(relative_error(grown, {expected.begin(), expected.begin() + grown.size()}), bound);
    decoder.get().reset(0);
    const std::vector<float> full = decoder.append_all({{0, all.first(16)}, {1, all.subspan(16)}});
    EXPECT_LT(relative_error(full, expected), bound);
  }
}

INSTANTIATE_TEST_SUITE_P(ModelVariants, DecoderTest, ::testing::ValuesIn(model_variants()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace te::testing
