// Compares te-generate with transformers' generate() on the same tiny model (scripts/generation_agreement.py
// --fixture): greedy decoding, with and without end tokens, and repetition penalty.

#include "core/json.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

using nlohmann::json;

class TransformersAgreement : public GenerateFolder {
 protected:
  const std::string fixture_ = std::string(TE_SOURCE_DIR) + "/tests/fixtures/generate";
  const json expected_ = parse_json(read_file(fixture_ + "/expected.json"));

  void expect_equal(const json& one, const std::string& more) const {
    const Result result = run(
        "--checkpoint " + fixture_ + "/llama --tokenizer bytes --device cpu --dtype fp32 --quiet --prompts " +
        file("prompts") + " --output " + file("results") + " --max-tokens " + expected_["max_tokens"].dump() +
        " " + one["options"].get<std::string>() + more);
    ASSERT_EQ(result.code, 0) << result.error;
    json tokens = json::array();
    for (const std::string& line : split(read_file(file("results")), '\n'))
      tokens.push_back(parse_json(line)["tokens"]);
    EXPECT_EQ(tokens, one["tokens"]) << one["options"] << more;
  }
};

TEST_F(TransformersAgreement, TokenForToken) {
  std::string lines;
  for (const json& prompt : expected_["prompts"]) lines += json{{"prompt", prompt}}.dump() + "\n";
  write_file(file("prompts"), lines);
  ASSERT_EQ(expected_["cases"].size(), 3u);
  int ended = 0;
  for (size_t i = 0; i < expected_["cases"].size(); ++i) {
    const json& one = expected_["cases"][i];
    expect_equal(one, i % 2 == 0 ? " --batch 2" : " --batch 9");
    for (const json& tokens : one["tokens"]) ended += tokens.back() == 256 ? 1 : 0;
  }
  EXPECT_GT(ended, 5);  // otherwise the fixture does not test end tokens
}

}  // namespace
}  // namespace te::testing
