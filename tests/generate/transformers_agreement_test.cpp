// Compares te-generate with transformers' generate() on the same tiny model (scripts/generation_agreement.py
// --fixture): greedy decoding, repetition penalty, and beam search with all its options.
#include <cmath>
#include <nlohmann/json.hpp>

#include "generate/beam_search.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

class TransformersAgreement : public GenerateFolder {
 protected:
  const std::string fixture_ = std::string(TE_SOURCE_DIR) + "/tests/fixtures/generate";
  const json expected_ = json::parse(read_file(fixture_ + "/expected.json"));

  void expect_equal(const json& one, const std::string& more) const {
    const Result result = run(
        "--checkpoint " + fixture_ + "/llama --tokenizer bytes --device cpu --dtype fp32 --quiet --prompts " +
        file("prompts") + " --output " + file("results") + " --max-tokens " + expected_["max_tokens"].dump() +
        " " + one["options"].get<std::string>() + more);
    ASSERT_EQ(result.code, 0) << result.error;
    json tokens = json::array();
    for (const std::string& line : split(read_file(file("results")), '\n'))
      tokens.push_back(json::parse(line)["tokens"]);
    EXPECT_EQ(tokens, one["tokens"]) << one["options"] << more;
  }
};

TEST_F(TransformersAgreement, TokenForToken) {
  std::string lines;
  for (const json& prompt : expected_["prompts"]) lines += json{{"prompt", prompt}}.dump() + "\n";
  write_file(file("prompts"), lines);
  ASSERT_GT(expected_["cases"].size(), 30u);
  int ended = 0;
  for (size_t i = 0; i < expected_["cases"].size(); ++i) {
    const json& one = expected_["cases"][i];
    expect_equal(one, i % 2 == 0 ? " --batch 2" : " --batch 9");
    for (const json& tokens : one["tokens"]) ended += tokens.back() == 256 ? 1 : 0;
  }
  EXPECT_GT(ended, 100);  // otherwise the fixture does not test end tokens
}

// Log probabilities without a model: prompt [1, 2, 3], vocabulary of 6.
TEST(Beams, HypothesesAndRunningBeams) {
  generate::Beams beams({.num_beams = 2}, {1, 2, 3}, 3, generate::EndTokens({5}), 1.0);
  const auto logits = [](std::vector<double> probabilities) {
    std::vector<float> result;
    for (const double p : probabilities) result.push_back(static_cast<float>(std::log(p)));
    return result;
  };
  // The end token is the second best continuation: it gives a hypothesis of one token; beams 0 and 1 continue.
  ASSERT_TRUE(beams.advance(logits({0.5, 0.15, 0.01, 0.02, 0.02, 0.3})));
  ASSERT_EQ(beams.running().size(), 2u);
  EXPECT_EQ(beams.parents(), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(beams.running()[0].tokens, (std::vector<int32_t>{0}));
  EXPECT_EQ(beams.running()[1].tokens, (std::vector<int32_t>{1}));
  EXPECT_EQ(beams.best().tokens, (std::vector<int32_t>{5}));
  EXPECT_NEAR(beams.best().score, std::log(0.3), 1e-6);
  // Both best continuations come from the first beam. Its hypothesis has the better mean over two tokens.
  std::vector<float> rows = logits({0.02, 0.02, 0.3, 0.01, 0.15, 0.5});
  const std::vector<float> second = logits({0.2, 0.2, 0.2, 0.2, 0.1, 0.1});
  rows.insert(rows.end(), second.begin(), second.end());
  // Two hypotheses; the best running beam, log(0.5 * 0.3) / 2, would still replace the worse one, log(0.3).
  ASSERT_TRUE(beams.advance(rows));
  EXPECT_EQ(beams.parents(), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(beams.running()[0].tokens, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(beams.best().tokens, (std::vector<int32_t>{0, 5}));
  EXPECT_NEAR(beams.best().score, std::log(0.5 * 0.5) / 2, 1e-6);
  // At max_tokens, the best running beam becomes a hypothesis even without an end token.
  rows = logits({0.01, 0.01, 0.95, 0.01, 0.01, 0.01});
  rows.insert(rows.end(), second.begin(), second.end());
  EXPECT_FALSE(beams.advance(rows));
  EXPECT_EQ(beams.best().tokens, (std::vector<int32_t>{0, 2, 2}));
  EXPECT_NEAR(beams.best().score, std::log(0.5 * 0.3 * 0.95) / 3, 1e-6);
}

}  // namespace
}  // namespace te::testing
