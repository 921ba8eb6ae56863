// Text ends where transformers' generate() ends it: at the token ids in the model's generation_config.json and at no
// others, for Hugging Face folders and imported checkpoints, for all kinds of generation.
#include "generate/end_tokens.h"
#include "core/json.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "generate/generate_testing.h"
#include "generate/te_generate_testing.h"

namespace te::testing {
namespace {

using generate::EndTokens;
using nlohmann::json;
using Ids = std::vector<int32_t>;

class EndTokensTest : public GenerateFolder {
 protected:
  /// A copy of the fixture with `generation` as its generation_config.json; null: without that file.
  std::string model(const json& generation, const json& config = json::object()) const {
    const std::filesystem::path to = file("model");
    std::filesystem::remove_all(to);
    std::filesystem::copy(fixture_ + "/llama", to);
    if (generation.is_null())
      std::filesystem::remove(to / "generation_config.json");
    else
      write_file(to / "generation_config.json", generation.dump());
    json updated = parse_json(read_file(to / "config.json"));
    updated.update(config);
    write_file(to / "config.json", updated.dump());
    return to;
  }
  /// te-generate's records for the fixture's prompts.
  std::vector<json> results(const std::string& checkpoint, const std::string& options = "") const {
    std::string lines;
    for (const json& prompt : expected_["prompts"]) lines += json{{"prompt", prompt}}.dump() + "\n";
    write_file(file("prompts"), lines);
    const Result result =
        run("--checkpoint " + checkpoint + " --tokenizer bytes --device cpu --dtype fp32 --quiet --prompts " +
            file("prompts") + " --output " + file("results") + " --max-tokens " +
            expected_["max_tokens"].dump() + " " + options);
    EXPECT_EQ(result.code, 0) << result.error;
    std::vector<json> all;
    for (const std::string& line : split(read_file(file("results")), '\n')) all.push_back(parse_json(line));
    return all;
  }
  /// The tokens that transformers generated without end tokens, up to the first of `ends`.
  std::vector<Ids> recorded_up_to(const std::set<int32_t>& ends) const {
    std::vector<Ids> texts;
    for (const json& one : expected_["cases"])
      if (one["options"] == "--ignore-end") texts = one["tokens"].get<std::vector<Ids>>();
    for (Ids& tokens : texts) {
      const auto end = std::ranges::find_if(tokens, [&](int32_t t) { return ends.contains(t); });
      if (end != tokens.end()) tokens.erase(end + 1, tokens.end());
    }
    return texts;
  }
  void expect_ends(const std::string& checkpoint, const std::set<int32_t>& ends) const {
    const std::vector<Ids> expected = recorded_up_to(ends);
    const std::vector<json> all = results(checkpoint);
    ASSERT_EQ(all.size(), expected.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i]["tokens"].get<Ids>(), expected[i]);
      EXPECT_EQ(all[i]["ending"], ends.contains(expected[i].back()) ? "end token" : "max tokens");
    }
  }

  const std::string fixture_ = std::string(TE_SOURCE_DIR) + "/tests/fixtures/generate";
  const json expected_ = parse_json(read_file(fixture_ + "/expected.json"));
};

// The tokenizer's end-of-document token is 256.
TEST_F(EndTokensTest, FromAHuggingFaceFolder) {
  expect_ends(model({{"eos_token_id", {171, 103}}}), {171, 103});
  expect_ends(model({{"eos_token_id", 31}}), {31});
  expect_ends(model({{"eos_token_id", {256, 12}}}), {256, 12});
  // Without that file, the ids come from config.json; if neither has any, from the tokenizer.
  expect_ends(model(nullptr, {{"eos_token_id", {64, 199}}}), {64, 199});
  expect_ends(model(json::object(), {{"eos_token_id", 64}}), {256});
  // null: no token ends the text.
  expect_ends(model({{"eos_token_id", nullptr}}, {{"eos_token_id", 64}}), {});
  expect_ends(model(nullptr, {{"eos_token_id", nullptr}}), {});
  // Ids outside the vocabulary have no effect.
  expect_ends(model({{"eos_token_id", {-1, 100000, 31}}}), {31});
  EXPECT_EQ(results(model({{"eos_token_id", 31}}), "--ignore-end")[0]["tokens"].get<Ids>(),
            recorded_up_to({})[0]);
  expect_refused(run("--checkpoint " + model({{"eos_token_id", "x"}}) + " --tokenizer bytes --prompt a"),
                 "generation_config.json.eos_token_id: is of type string; it must be an integer");
}

// Other settings with which transformers' generate() chooses other tokens are named, unless an option replaces them.
TEST_F(EndTokensTest, OtherGenerationSettingsAreNamed) {
  const json used = {{"repetition_penalty", 1.1},
                     {"suppress_tokens", {7}},
                     {"bad_words_ids", {{1, 2}}},
                     {"min_new_tokens", 3},
                     {"encoder_no_repeat_ngram_size", 2},
                     {"encoder_repetition_penalty", 1.2},
                     {"watermarking_config", {{"bias", 2.5}}},
                     {"forced_eos_token_id", 0}};
  const json neutral = {{"repetition_penalty", 1.0},
                        {"num_beams", 1},
                        {"suppress_tokens", nullptr},
                        {"min_length", 0},
                        {"sequence_bias", {}},
                        {"temperature", 0.7},
                        {"do_sample", true},
                        {"bad_words_ids", json::array()},
                        {"encoder_repetition_penalty", 1.0},
                        {"encoder_no_repeat_ngram_size", 0},
                        {"watermarking_config", nullptr}};
  const auto warning = [&](const std::string& checkpoint, const std::string& options = "") {
    const Result result =
        run("--checkpoint " + checkpoint + " --tokenizer bytes --prompt a --max-tokens 1 " + options);
    EXPECT_EQ(result.code, 0) << result.error;
    return result.error.substr(0, result.error.find('\n'));
  };
  const std::string rest =
      "bad_words_ids, encoder_no_repeat_ngram_size, encoder_repetition_penalty, forced_eos_token_id, "
      "min_new_tokens";
  TE_EXPECT_CONTAINS(
      warning(model(used)),
      "does not use " + rest + ", repetition_penalty, suppress_tokens, watermarking_config of");
  TE_EXPECT_CONTAINS(warning(model(used), "--repetition-penalty 1.1"),
                     "does not use " + rest + ", suppress_tokens, watermarking_config of");
  TE_EXPECT_CONTAINS(warning(model(nullptr, {{"num_beams", 4}})), "does not use num_beams of");
  EXPECT_EQ(warning(model(neutral)).find("warning"), std::string::npos);
}

TEST_F(EndTokensTest, FromAnImportedCheckpoint) {
  const std::string checkpoint = file("imported");
  ASSERT_EQ(std::system((TE_CONVERT_EXECUTABLE " import " + model({{"eos_token_id", {171, 103}}}) +
                         " --out " + checkpoint + " >" + file("log") + " 2>&1")
                            .c_str()),
            0)
      << read_file(file("log"));
  expect_ends(checkpoint, {171, 103});
}

// The samples that te-train generates also end at the ids of the files next to its tokenizer.
TEST_F(EndTokensTest, InSamplesOfTraining) {
  TrainFolder folder;
  json vocab = {{"<|endoftext|>", 256}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte;
  const json tokenizer = {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}, {"byte_fallback", true}}},
      {"decoder", {{"type", "ByteFallback"}}},
      {"added_tokens", {{{"id", 256}, {"content", "<|endoftext|>"}, {"special", true}}}}};
  std::filesystem::create_directories(folder / "tokenizer");
  write_file(folder / "tokenizer/tokenizer.json", tokenizer.dump());
  const Overrides overrides = {"data.tokenizer=" + (folder / "tokenizer"),
                               "training.train_steps=2",
                               "optimizer.lr=0.02",
                               "logging.generate_every=2",
                               "logging.generate_prompts=[the]",
                               "logging.generate_tokens=8"};
  const Result first = folder.run("a", overrides);
  ASSERT_EQ(first.code, 0) << first.out << first.error;
  const json full = folder.records("a", "samples.jsonl").at(0);
  ASSERT_EQ(full["ending"], "max tokens");
  const auto text = full["text"].get<std::string>();
  ASSERT_FALSE(text.empty());
  write_file(folder / "tokenizer/generation_config.json",
             json{{"eos_token_id", {256, static_cast<uint8_t>(text[0])}}}.dump());
  ASSERT_EQ(folder.run("b", overrides).code, 0);
  const json ended = folder.records("b", "samples.jsonl").at(0);
  EXPECT_EQ(ended["ending"], "end token");
  EXPECT_EQ(ended["text"], "");
  // The run's checkpoints keep the files, so te-generate ends at the same ids.
  const Result generated = run("--checkpoint " + folder.run_folder("b") +
                               "/checkpoints --dtype bf16 --prompt the --max-tokens 8 --quiet");
  ASSERT_EQ(generated.code, 0) << generated.error;
  EXPECT_EQ(generated.out, "\n");
  // Runs that start from a checkpoint of the same tokenizer also have its ids.
  std::filesystem::remove(folder / "tokenizer/generation_config.json");
  const Overrides same = {"checkpoint.init_from=" + folder.checkpoint("b", 2), "optimizer.lr=1e-9",
                          "optimizer.min_lr=0", "checkpoint.save_every=1"};
  const Result result = folder.run("c", overrides + same);
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(folder.records("c", "samples.jsonl").at(0), ended);
  const Overrides resumed = {"checkpoint.resume=" + folder.checkpoint("c", 1)};
  ASSERT_EQ(folder.run("d", overrides + Overrides{"optimizer.lr=1e-9", "optimizer.min_lr=0"} + resumed).code,
            0);
  EXPECT_EQ(folder.records("d", "samples.jsonl").at(0), ended);
}

}  // namespace
}  // namespace te::testing
