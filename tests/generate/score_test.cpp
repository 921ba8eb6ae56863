// Compares Decoder::score with the softmax of append_all's logits, also with truncated sequences and a resized cache.
#include <cmath>

#include "core/error.h"
#include "generate/evaluation/scorer.h"
#include "generate/generate_testing.h"

namespace te::testing {
namespace {

using generate::RequestGroup;
using generate::ScoredContinuation;
using generate::TokenScore;

/// The score of a token by a row of logits, in double precision.
TokenScore expected_score(const std::vector<float>& logits, int64_t row, int64_t vocab, int32_t token) {
  const float* of = logits.data() + row * vocab;
  const float* first = std::max_element(of, of + vocab);
  const double largest = *first;
  double sum = 0.0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(of[i] - largest);
  return {of[token] - largest - std::log(sum), of + token == first};
}

class ScoreTest : public ::testing::TestWithParam<ModelVariant> {
 protected:
  ScoreTest() {
    config_.training.micro_batch_size = config_.training.global_batch_size = 3;
    tiny_ = std::make_unique<TinyModel>(config_);
    source_ = std::make_unique<MemorySource>(*tiny_, config_);
    tokens_ = random_tokens(config_, 4);
    logits_ = full_logits(*tiny_, config_, tokens_);
  }
  std::span<const int32_t> part(int64_t sequence, int64_t from, int64_t count) const {
    return std::span(tokens_).subspan(static_cast<size_t>(sequence * seq_ + from),
                                      static_cast<size_t>(count));
  }
  /// Expected score of the token after position `at` of a sequence.
  TokenScore expected(int64_t sequence, int64_t at) const {
    return expected_score(logits_, sequence * seq_ + at, config_.model.vocab_size,
                          part(sequence, at + 1, 1)[0]);
  }
  static void expect_near(const TokenScore& actual, const TokenScore& wanted) {
    EXPECT_NEAR(actual.log_probability, wanted.log_probability, 1e-5);
    EXPECT_EQ(actual.is_argmax, wanted.is_argmax);
  }

  config::Config config_ = tiny_config_of(GetParam());
  const int64_t seq_ = config_.model.seq_length;
  std::unique_ptr<TinyModel> tiny_;
  std::unique_ptr<MemorySource> source_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
};

// Passes of 16 rows and chunks of 4 divide the sequences, which have targets at no, at all and at their last three
// positions.
TEST_P(ScoreTest, IsTheSoftmaxOfTheLogits) {
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 3, .max_rows = 16, .score_rows = 4});
  const std::vector<ScoredContinuation> next = {
      {2, part(2, 0, 9), {}}, {0, part(0, 0, 13), part(0, 1, 13)}, {1, part(1, 0, 11), part(1, 9, 3)}};
  const std::vector<TokenScore> scores = decoder.get().score(tiny_->context(), next);
  ASSERT_EQ(scores.size(), 16u);
  for (int64_t i = 0; i < 13; ++i) expect_near(scores[static_cast<size_t>(i)], expected(0, i));
  for (int64_t i = 0; i < 3; ++i) expect_near(scores[static_cast<size_t>(13 + i)], expected(1, 8 + i));
  // The sequence without targets is also in the cache.
  const std::vector<TokenScore> more = decoder.get().score(
      tiny_->context(), std::vector<ScoredContinuation>{{2, part(2, 9, 2), part(2, 10, 2)}});
  ASSERT_EQ(more.size(), 2u);
  expect_near(more[0], expected(2, 9));
  expect_near(more[1], expected(2, 10));
}

TEST_P(ScoreTest, RecognizesTheMostProbableToken) {
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 1, .max_rows = 16, .score_rows = 4});
  const int64_t vocab = config_.model.vocab_size;
  const float* row = logits_.data();
  const auto best = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
  for (const int32_t target : {best, best > 0 ? best - 1 : 1}) {
    decoder.get().reset(0);
    const std::vector<TokenScore> scores = decoder.get().score(
        tiny_->context(), std::vector<ScoredContinuation>{{0, part(0, 0, 1), {&target, 1}}});
    ASSERT_EQ(scores.size(), 1u);
    expect_near(scores[0], expected_score(logits_, 0, vocab, target));
    EXPECT_EQ(scores[0].is_argmax, target == best);
  }
}

// As for torch.argmax and lm-evaluation-harness.
TEST_P(ScoreTest, OnlyTheFirstOfEqualLogitsIsTheArgmax) {
  config_.model.final_logit_softcapping = 1e-6;  // all positive logits become 1e-6
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 1, .max_rows = 16, .score_rows = 4});
  const std::vector<float> logits = decoder.append_all({{0, part(0, 0, 1)}});
  ASSERT_GT(std::ranges::count(logits, *std::ranges::max_element(logits)), 1);
  for (int32_t target = 0; target < config_.model.vocab_size; ++target) {
    decoder.get().reset(0);
    const std::vector<TokenScore> scores = decoder.get().score(
        tiny_->context(), std::vector<ScoredContinuation>{{0, part(0, 0, 1), {&target, 1}}});
    ASSERT_EQ(scores.size(), 1u);
    EXPECT_EQ(scores[0].is_argmax, expected_score(logits, 0, config_.model.vocab_size, target).is_argmax)
        << target;
  }
}

TEST_P(ScoreTest, ATruncatedSequenceContinues) {
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 2, .max_rows = 16, .score_rows = 16});
  generate::Decoder& d = decoder.get();
  d.score(tiny_->context(), std::vector<ScoredContinuation>{{1, part(0, 0, 12), {}}});
  d.truncate(1, 5);
  EXPECT_EQ(d.length(1), 5);
  const auto scores =
      d.score(tiny_->context(), std::vector<ScoredContinuation>{{1, part(0, 5, 4), part(0, 6, 4)}});
  for (int64_t i = 0; i < 4; ++i) expect_near(scores[static_cast<size_t>(i)], expected(0, 5 + i));
  EXPECT_THROW(d.truncate(1, 10), InternalError);
}

// Resizes a cache of 2 * 16 tokens to 3 * 10 and back.
TEST_P(ScoreTest, ResizesTheCache) {
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 2, .max_rows = 16, .score_rows = 16});
  generate::Decoder& d = decoder.get();
  d.resize_cache(3, 10);
  EXPECT_EQ(d.max_length(), 10);
  std::vector<ScoredContinuation> next;
  for (int64_t i = 0; i < 3; ++i) next.push_back({i, part(i, 0, 10), part(i, 1, 10)});
  const auto scores = d.score(tiny_->context(), next);
  ASSERT_EQ(scores.size(), 30u);
  for (int64_t i = 0; i < 30; ++i) expect_near(scores[static_cast<size_t>(i)], expected(i / 10, i % 10));
  EXPECT_THROW(d.score(tiny_->context(), std::vector<ScoredContinuation>{{0, part(0, 10, 1), {}}}),
               UserError);
  d.resize_cache(2, 16);
  EXPECT_EQ(d.length(1), 0);
  EXPECT_THROW(d.resize_cache(3, 16), InternalError);
}

TEST_P(ScoreTest, CopiesAPrefix) {
  ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 3, .max_rows = 16, .score_rows = 16});
  generate::Decoder& d = decoder.get();
  d.score(tiny_->context(), std::vector<ScoredContinuation>{{1, part(0, 0, 12), {}}});
  d.copy_prefix(tiny_->context(), 1, std::vector<int64_t>{0, 2}, 7);
  EXPECT_EQ(d.length(2), 7);
  const auto scores = d.score(
      tiny_->context(),
      std::vector<ScoredContinuation>{{0, part(0, 7, 3), part(0, 8, 3)}, {2, part(0, 7, 2), part(0, 8, 2)}});
  ASSERT_EQ(scores.size(), 5u);
  for (size_t i = 0; i < 5; ++i) expect_near(scores[i], expected(0, 7 + static_cast<int64_t>(i % 3)));
  EXPECT_THROW(d.copy_prefix(tiny_->context(), 1, std::vector<int64_t>{0}, 7),
               InternalError);  // not empty
  d.reset(0);
  EXPECT_THROW(d.copy_prefix(tiny_->context(), 1, std::vector<int64_t>{0}, 13),
               InternalError);  // too long
}

// Questions after the same 20 tokens, which run once.
TEST_P(ScoreTest, ThePrefixOfAllGroupsRunsOnce) {
  config::Config config = config_;
  config.model.seq_length = config.model.max_position_embeddings = 40;
  TinyModel tiny(config);
  const MemorySource source(tiny, config);
  const std::vector<int32_t> tokens = random_tokens(config, 9);
  const auto request = [&](size_t tail, int32_t choice) {
    std::vector<int32_t> all(tokens.begin(), tokens.begin() + 20);
    all.insert(all.end(), tokens.begin() + 40 + static_cast<std::ptrdiff_t>(tail), tokens.begin() + 44);
    all.push_back(choice);
    return generate::TokenRequest{std::move(all), 1};
  };
  std::vector<RequestGroup> groups;
  for (size_t tail = 0; tail < 3; ++tail) groups.push_back({request(tail, 5), request(tail, 6)});
  const auto run = [&](int64_t batch) {
    ReadyDecoder decoder(tiny.context(), config, source, {.batch = 3, .max_rows = 16, .score_rows = 8});
    int64_t given = 0;
    auto scores = generate::score_groups(decoder.get(), tiny.context(), groups,
                                         {.batch = batch, .cache_tokens = 120}, {}, given);
    return std::pair(std::move(scores), given);
  };
  const auto [alone, given_alone] = run(1);
  const auto [together, given_together] = run(3);
  EXPECT_EQ(given_alone, 3 * 20 + (3 + 2 + 1) + 6);
  EXPECT_EQ(given_together, 20 + (3 + 2 + 1) + 6);
  for (size_t g = 0; g < 3; ++g) {
    for (size_t r = 0; r < 2; ++r)
      EXPECT_NEAR(together[g][r].log_probability, alone[g][r].log_probability, 1e-5) << g << " " << r;
  }
}

// Groups of requests with and without a shared prefix: each score equals that of the request alone, for every batch
// size.
TEST_P(ScoreTest, RequestsOfAGroupShareTheirPrefix) {
  const auto request = [&](int64_t sequence, int64_t from, int64_t count, int64_t scored) {
    const auto tokens = part(sequence, from, count);
    return generate::TokenRequest{{tokens.begin(), tokens.end()}, scored};
  };
  const auto changed = [&](generate::TokenRequest r, size_t at) {
    r.tokens[at] = (r.tokens[at] + 1) % static_cast<int32_t>(config_.model.vocab_size);
    return r;
  };
  const generate::TokenRequest whole = request(0, 0, 14, 4);
  const std::vector<RequestGroup> groups = {
      {whole, changed(whole, 12), changed(whole, 10)},  // they differ in the scored tokens
      {request(1, 0, 9, 8)},                            // a single request, scored from its second token on
      {whole, changed(whole, 3), request(0, 0, 7, 2)},  // they differ in earlier tokens and in length
      {request(2, 0, 2, 1), request(2, 0, 2, 1)},       // the shortest possible request, twice
      {request(2, 0, 12, 1), changed(request(2, 0, 12, 1), 11)},  // one scored token each
  };
  const auto run = [&](int64_t batch, int64_t replica, int64_t replicas) {
    ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 2, .max_rows = 16, .score_rows = 8});
    int64_t given = 0;
    const auto scores = generate::score_groups(
        decoder.get(), tiny_->context(), groups,
        {.batch = batch, .cache_tokens = 32, .replica = replica, .replicas = replicas}, {}, given);
    return std::pair(scores, given);
  };
  const auto [one, given_one] = run(1, 0, 1);
  const auto [many, given_many] = run(8, 0, 1);
  EXPECT_EQ(given_one, given_many);
  // 9 shared and 3 * 4 separate tokens; 8; 3 + 10 + 10 + 3; 1 for two equal requests; 10 + 1 + 1.
  EXPECT_EQ(given_one, 21 + 8 + 26 + 1 + 12);
  EXPECT_EQ(many[3][0].log_probability, many[3][1].log_probability);
  ASSERT_EQ(one.size(), groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    ASSERT_EQ(one[g].size(), groups[g].size());
    for (size_t r = 0; r < groups[g].size(); ++r) {
      const generate::TokenRequest& judged = groups[g][r];
      ReadyDecoder decoder(tiny_->context(), config_, *source_, {.batch = 1, .max_rows = 16});
      const auto inputs = std::span(judged.tokens).first(static_cast<size_t>(judged.inputs()));
      const std::vector<float> logits = decoder.append_all({{0, inputs}});
      double sum = 0.0;
      for (int64_t i = judged.inputs() - judged.scored; i < judged.inputs(); ++i)
        sum += expected_score(logits, i, config_.model.vocab_size, judged.tokens[static_cast<size_t>(i + 1)])
                   .log_probability;
      EXPECT_NEAR(one[g][r].log_probability, sum, 1e-4) << g << " " << r;
      EXPECT_NEAR(many[g][r].log_probability, sum, 1e-4) << g << " " << r;
    }
  }
  // Two replicas divide the batches.
  const auto [even, given_even] = run(1, 0, 2);
  const auto [odd, given_odd] = run(1, 1, 2);
  EXPECT_EQ(given_even + given_odd, given_one);
  for (size_t g = 0; g < groups.size(); ++g) EXPECT_NE(even[g].empty(), odd[g].empty());
}

INSTANTIATE_TEST_SUITE_P(ModelVariants, ScoreTest, ::testing::ValuesIn(model_variants()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace te::testing
