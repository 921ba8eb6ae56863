// Compares the sampler with exact probabilities.
#include "generate/sampler.h"
#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/error.h"
#include "testing/files.h"

namespace te::generate {
namespace {

/// Probabilities 0.5, 0.25, 0.125, 0.125 of tokens 2, 0, 1, 3.
const std::vector<float> kLogits = {std::log(0.25f), std::log(0.125f), std::log(0.5f), std::log(0.125f)};

std::map<int32_t, double> exact(const SamplingOptions& options) {
  std::map<int32_t, double> result;
  for (const Candidate& candidate : candidates(kLogits, options))
    result[candidate.token] = candidate.probability;
  return result;
}

void expect_probabilities(const SamplingOptions& options, const std::map<int32_t, double>& expected) {
  const std::map<int32_t, double> actual = exact(options);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [token, probability] : expected) EXPECT_NEAR(actual.at(token), probability, 1e-6) << token;
}

TEST(Sampler, Distributions) {
  expect_probabilities({.temperature = 1.0}, {{2, 0.5}, {0, 0.25}, {1, 0.125}, {3, 0.125}});
  // p^2 at temperature 1/2: 16, 4, 1, 1 of 22.
  expect_probabilities({.temperature = 0.5}, {{2, 16.0 / 22}, {0, 4.0 / 22}, {1, 1.0 / 22}, {3, 1.0 / 22}});
  expect_probabilities({.temperature = 1.0, .top_k = 2}, {{2, 2.0 / 3}, {0, 1.0 / 3}});
  // Tokens with the same probability as the k-th are kept, as in transformers.
  expect_probabilities({.temperature = 1.0, .top_k = 3}, {{2, 0.5}, {0, 0.25}, {1, 0.125}, {3, 0.125}});
  expect_probabilities({.temperature = 1.0, .top_k = 1}, {{2, 1.0}});
  expect_probabilities({.temperature = 1.0, .top_k = 9}, {{2, 0.5}, {0, 0.25}, {1, 0.125}, {3, 0.125}});
  expect_probabilities({.temperature = 1.0, .top_p = 0.6}, {{2, 2.0 / 3}, {0, 1.0 / 3}});
  expect_probabilities({.temperature = 1.0, .top_p = 0.8}, {{2, 4.0 / 7}, {0, 2.0 / 7}, {1, 1.0 / 7}});
  expect_probabilities({.temperature = 1.0, .top_p = 1e-9}, {{2, 1.0}});
  // top-p applies to the distribution after temperature and top-k: 2/3 reaches 0.6.
  expect_probabilities({.temperature = 1.0, .top_k = 2, .top_p = 0.6}, {{2, 1.0}});
  expect_probabilities({.temperature = 0.0}, {{2, 1.0}});
}

// The distributions of transformers' generate() for single options and combinations (scripts/generation_agreement.py
// --distributions). transformers computes in FP32, so probabilities differ by a few units in the last place.
TEST(Sampler, DistributionsEqualThoseOfTransformers) {
  using nlohmann::json;
  const json cases =
      parse_json(testing::read_file(TE_SOURCE_DIR "/tests/fixtures/generate/distributions.json"));
  ASSERT_GE(cases.size(), 30u);
  size_t cut = 0;
  for (const json& one : cases) {
    const json& given = one["options"];
    SamplingOptions options{.temperature = given.value("temperature", 1.0),
                            .top_k = given.value("top_k", int64_t{0}),
                            .top_p = given.value("top_p", 1.0),
                            .min_p = given.value("min_p", 0.0)};
    auto logits = one["logits"].get<std::vector<float>>();
    penalize_repetitions(logits, given.value("repetition_penalty", 1.0),
                         {one["seen"].get<std::vector<int32_t>>()});
    std::map<int32_t, double> actual;
    for (const Candidate& candidate : candidates(logits, options))
      actual[candidate.token] = candidate.probability;
    ASSERT_EQ(actual.size(), one["probabilities"].size()) << given;
    for (const json& expected : one["probabilities"])
      EXPECT_NEAR(actual.at(expected[0]), expected[1].get<double>(), 2e-6) << given;
    cut += actual.size() < logits.size() ? 1 : 0;
  }
  EXPECT_GE(cut, 24u);  // otherwise the fixture does not test the options
}

// min-p is relative to the most probable token, at the temperature of the draw, after top-k and top-p.
TEST(Sampler, MinP) {
  expect_probabilities({.temperature = 1.0, .min_p = 0.4}, {{2, 2.0 / 3}, {0, 1.0 / 3}});
  expect_probabilities({.temperature = 1.0, .min_p = 0.2}, {{2, 0.5}, {0, 0.25}, {1, 0.125}, {3, 0.125}});
  expect_probabilities({.temperature = 0.5, .min_p = 0.4}, {{2, 1.0}});
  expect_probabilities({.temperature = 1.0, .top_p = 0.8, .min_p = 0.2},
                       {{2, 4.0 / 7}, {0, 2.0 / 7}, {1, 1.0 / 7}});
  expect_probabilities({.temperature = 1.0, .min_p = 1.0}, {{2, 1.0}});
}

// The penalty applies once per token, however often it occurs; negative scores are multiplied.
TEST(Sampler, RepetitionPenalty) {
  const std::vector<int32_t> prompt = {0, 1, 1}, tokens = {3, 0};
  std::vector<float> scores = {3.0f, -1.0f, 2.0f, 0.0f};
  penalize_repetitions(scores, 1.5, {prompt, tokens});
  EXPECT_EQ(scores, (std::vector<float>{2.0f, -1.5f, 2.0f, 0.0f}));
  penalize_repetitions(scores, 1.0, {prompt, tokens});
  EXPECT_EQ(scores, (std::vector<float>{2.0f, -1.5f, 2.0f, 0.0f}));
}

TEST(Sampler, GreedySelectsTheFirstOfEqualTokens) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {}, 0, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-1, -INFINITY, -1}, {}, 0, 0), 0);
}

// The counts of many draws are within 5 standard deviations (one false alarm in a million); the seed is fixed, so the
// result never changes.
TEST(Sampler, DrawsFollowTheProbabilities) {
  constexpr int kDraws = 40000;
  const SamplingOptions all[] = {{.temperature = 1.0, .seed = 1},
                                 {.temperature = 0.7, .seed = 2},
                                 {.temperature = 1.0, .top_k = 3, .seed = 3},
                                 {.temperature = 1.0, .top_p = 0.8, .seed = 4},
                                 {.temperature = 2.0, .top_k = 3, .top_p = 0.9, .seed = 5}};
  for (const SamplingOptions& options : all) {
    std::map<int32_t, int> by_position, by_sequence;
    for (uint64_t i = 0; i < kDraws; ++i) {
      ++by_position[sample(kLogits, options, 3, i)];
      ++by_sequence[sample(kLogits, options, i, 3)];
    }
    const std::map<int32_t, double> expected = exact(options);
    for (const auto& counts : {by_position, by_sequence}) {
      EXPECT_EQ(counts.size(), expected.size());
      for (const auto& [token, probability] : expected) {
        const double sigma = std::sqrt(kDraws * probability * (1 - probability));
        EXPECT_NEAR(counts.at(token), kDraws * probability, 5 * sigma) << token << " seed " << options.seed;
      }
    }
  }
}

TEST(Sampler, DrawsAreAFunctionOfSeedSequenceAndPosition) {
  const auto draws = [](uint64_t seed, uint64_t sequence) {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 64; ++i)
      tokens.push_back(sample(kLogits, {.temperature = 1.0, .seed = seed}, sequence, i));
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
}

TEST(Sampler, RefusesNanAndInfiniteLogits) {
  for (const double temperature : {0.0, 1.0}) {
    const SamplingOptions options{.temperature = temperature};
    EXPECT_THROW(sample(std::vector<float>{0, NAN, 1}, options, 0, 0), UserError);
    EXPECT_THROW(sample(std::vector<float>{0, INFINITY}, options, 0, 0), UserError);
    EXPECT_THROW(sample(std::vector<float>{-INFINITY, -INFINITY}, options, 0, 0), UserError);
    EXPECT_EQ(sample(std::vector<float>{-INFINITY, 1}, options, 0, 0), 1);
  }
}

}  // namespace
}  // namespace te::generate
