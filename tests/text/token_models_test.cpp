// Unigram, WordPiece and WordLevel models, and byte pair encoding with unknown characters. The expected tokens were
// recorded from Hugging Face tokenizers 0.23.3; tokenizer_agreement_test.cpp compares whole tokenizers.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "testing/files.h"
#include "testing/log_capture.h"
#include "testing/temporary_folder.h"
#include "text/tokenizer.h"

namespace te {
namespace {

using nlohmann::json;
using testing::LogCapture;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;
using Tokens = std::vector<int32_t>;

class TokenModels : public ::testing::Test {
 protected:
  std::unique_ptr<text::Tokenizer> make(const json& model, const json& more = json::object()) {
    json value = {{"version", "1.0"}, {"model", model}};
    value.update(more);
    write_file(folder_ / "tokenizer.json", value.dump());
    return text::make_tokenizer(folder_ / "tokenizer.json");
  }
  std::string refusal(const json& model, const json& more = json::object()) {
    return user_error_of([&] { make(model, more); });
  }
  static Tokens encoded(const text::Tokenizer& tokenizer, const std::string& text) {
    Tokens tokens;
    tokenizer.encode(text, tokens);
    return tokens;
  }
  static json bpe(const json& vocab, const json& merges) {
    return {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  }
  static json unigram(const std::vector<std::pair<std::string, double>>& vocab, const json& unk_id = 0) {
    return {{"type", "Unigram"}, {"vocab", vocab}, {"unk_id", unk_id}};
  }

  TextFolder folder_;
};

TEST_F(TokenModels, UnigramTakesTheBestPath) {
  const auto tokenizer = make(unigram(
      {{"</s>", 0.0}, {"a", -1.0}, {"b", -1.0}, {"ab", -1.5}, {"abc", -9.0}, {"cd", -2.0}, {"c", -3.0}}));
  EXPECT_EQ(encoded(*tokenizer, "abcd"), (Tokens{3, 5}));
  EXPECT_EQ(encoded(*tokenizer, "ba"), (Tokens{2, 1}));
  EXPECT_EQ(encoded(*tokenizer, "axxb"), (Tokens{1, 0, 2}));  // one unknown token for both
  EXPECT_EQ(encoded(*tokenizer, "</s>x"), (Tokens{0}));       // </s> is the unknown token here
  EXPECT_EQ(encoded(*tokenizer, "x\xff"), (Tokens{0}));
}

TEST_F(TokenModels, UnigramFallsBackToBytes) {
  json model = unigram({{"<unk>", 0.0}, {"</s>", 0.0}, {"a", -1.0}, {"<0xC3>", -9.0}, {"<0xA9>", -9.0}});
  model["byte_fallback"] = true;
  const auto tokenizer = make(model);
  EXPECT_EQ(encoded(*tokenizer, "a\u00e9a"), (Tokens{2, 3, 4, 2}));
  EXPECT_EQ(encoded(*tokenizer, "a\u00e8a"), (Tokens{2, 0, 2}));
}

TEST_F(TokenModels, UnigramRefusesInvalidModels) {
  TE_EXPECT_CONTAINS(refusal(unigram({{"</s>", 0.0}}, 3)), "model.unk_id 3");
  json damaged = unigram({{"</s>", 0.0}});
  damaged["vocab"][0][1] = "x";
  TE_EXPECT_CONTAINS(refusal(damaged), "model.vocab[0]");
  TE_EXPECT_CONTAINS(refusal(unigram({{"</s>", 0.0}, {"</s>", 1.0}})), "occurs twice");
  const auto tokenizer = make(unigram({{"</s>", 0.0}}, nullptr));
  TE_EXPECT_CONTAINS(user_error_of([&] { encoded(*tokenizer, "x"); }), "model.unk_id is not set");
}

TEST_F(TokenModels, WordPieceTakesTheLongestToken) {
  json model = {
      {"type", "WordPiece"},
      {"unk_token", "[UNK]"},
      {"continuing_subword_prefix", "##"},
      {"max_input_chars_per_word", 6},
      {"vocab", {{"[UNK]", 0}, {"</s>", 1}, {"un", 2}, {"##a", 3}, {"##aff", 4}, {"##able", 5}, {"##x", 6}}}};
  const auto tokenizer = make(model, {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}});
  EXPECT_EQ(encoded(*tokenizer, "unaff unaffx  una"), (Tokens{2, 4, 2, 4, 6, 2, 3}));
  EXPECT_EQ(encoded(*tokenizer, "unaffable un"), (Tokens{0, 2}));  // too long
  EXPECT_EQ(encoded(*tokenizer, "unb a"), (Tokens{0, 0}));
  EXPECT_EQ(encoded(*tokenizer, "##x"), (Tokens{6}));
  model["unk_token"] = "nope";
  TE_EXPECT_CONTAINS(refusal(model), "model.unk_token `nope`");
}

TEST_F(TokenModels, WordLevelEncodesWords) {
  const json model = {
      {"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"?", 0}, {"</s>", 1}, {"a", 2}}}};
  const auto tokenizer = make(model, {{"pre_tokenizer", {{"type", "Whitespace"}}}});
  EXPECT_EQ(encoded(*tokenizer, "a b, a"), (Tokens{2, 0, 0, 2}));
  TE_EXPECT_CONTAINS(
      refusal(model, {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}),
      "ByteLevel is supported for BPE");
}

TEST_F(TokenModels, MergesApplyAcrossDroppedCharacters) {
  const auto tokenizer =
      make(bpe({{"a", 0}, {"b", 1}, {"ab", 2}, {"</s>", 3}}, json::array({json::array({"a", "b"})})));
  const LogCapture log;
  EXPECT_EQ(encoded(*tokenizer, "axb"), (Tokens{2}));
  EXPECT_EQ(encoded(*tokenizer, "xbx\u00e9"), (Tokens{1}));
  TE_EXPECT_CONTAINS(log.text(), "`x` is not in the vocabulary");
  EXPECT_EQ(log.text().find('\n'), log.text().rfind('\n')) << "logged more than once: " << log.text();
}

TEST_F(TokenModels, WarnsIfTheFilesDisagreeOnThePrefixSpace) {
  const json model = bpe({{"a", 0}, {"\u0120", 1}, {"\u0120a", 2}, {"</s>", 3}}, json::array({"\u0120 a"}));
  const json words = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}}};
  for (const bool space : {false, true}) {
    write_file(folder_ / "tokenizer_config.json",
               json{{"eos_token", "</s>"}, {"add_prefix_space", space}}.dump());
    const LogCapture log;
    EXPECT_EQ(encoded(*make(model, words), "a"), (Tokens{space ? 2 : 0}));
    EXPECT_EQ(log.text().empty(), !space) << log.text();
    if (space) {
      TE_EXPECT_CONTAINS(log.text(), "add_prefix_space is false, but true in tokenizer_config.json");
    }
  }
}

TEST_F(TokenModels, WarnsAboutDroppedBytes) {
  const auto tokenizer = text::make_tokenizer(TE_SOURCE_DIR "/tests/fixtures/tokenizers/neox_style.json");
  const LogCapture log;
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, "a \u00e9 b")), "a \u00e9 b");
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(tokenizer->decode(encoded(*tokenizer, "a\xff\xfe")), "a");
  TE_EXPECT_CONTAINS(log.text(), "the byte FF");
}

TEST_F(TokenModels, AddedTokensHaveTheIdsOfTheReference) {
  const json model = bpe({{"a", 0}, {"</s>", 1}}, json::array());
  const auto added = [](const json& ids) {
    json list = json::array();
    for (const auto& [content, id] : ids.items()) list.push_back({{"content", content}, {"id", id}});
    return json{{"added_tokens", list}};
  };
  EXPECT_EQ(make(model, added({{"<x>", 2}, {"<y>", 3}}))->vocab_size(), 4);
  EXPECT_EQ(make(model, added({{"</s>", 1}, {"<y>", 2}}))->vocab_size(), 3);
  TE_EXPECT_CONTAINS(refusal(model, added({{"<x>", 2}, {"<y>", 4}})), "has id 4, but Hugging Face assigns 3");
  TE_EXPECT_CONTAINS(refusal(model, added({{"<x>", 3}})), "Hugging Face assigns 2");
}

TEST_F(TokenModels, WarnsAboutIgnoredSettings) {
  const json model = bpe({{"a", 0}, {"</s>", 1}}, json::array());
  const LogCapture log;
  make(model);
  EXPECT_EQ(log.text(), "");
  make(model, {{"truncation", {{"max_length", 3}}}, {"padding", {{"pad_id", 0}}}});
  TE_EXPECT_CONTAINS(log.text(), "`truncation` is ignored");
  TE_EXPECT_CONTAINS(log.text(), "`padding` is ignored");
}

TEST_F(TokenModels, MetaspaceWithPrependSchemeFirstNeedsTheStart) {
  const json model = bpe({{"a", 0}, {"</s>", 1}}, json::array());
  const auto parts = [](const json& normalizer) {
    return json{{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}}},
                {"normalizer", normalizer}};
  };
  make(model, parts({{"type", "NFC"}}));
  make(model, parts({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}));
  TE_EXPECT_CONTAINS(refusal(model, parts({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}})),
                     "prepend_scheme is first");
  TE_EXPECT_CONTAINS(refusal(model, parts({{"type", "Nmt"}})), "prepend_scheme is first");
  // Metaspace prepends no second space before a space that the normalizer has added.
  const auto replace = [&](const char* content) {
    return parts({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", content}});
  };
  make(model, replace(" "));
  make(model, replace("_"));
  TE_EXPECT_CONTAINS(refusal(model, replace("x")), "prepend_scheme is first");
}

TEST_F(TokenModels, PrecompiledRefusesDamagedTables) {
  const json model = bpe({{"a", 0}, {"</s>", 1}}, json::array());
  const auto table = [&](const std::string& base64) {
    return json{{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64}}}};
  };
  TE_EXPECT_CONTAINS(refusal(model, table("AAA")), "is not base64");
  TE_EXPECT_CONTAINS(refusal(model, table("AA?A")), "is not base64");
  TE_EXPECT_CONTAINS(refusal(model, table("")), "is damaged");
  TE_EXPECT_CONTAINS(refusal(model, table("AAAA")), "is damaged");
  TE_EXPECT_CONTAINS(refusal(model, table("AAAAAA==")), "is damaged");      // empty trie
  TE_EXPECT_CONTAINS(refusal(model, table("CAAAAAAAAAA=")), "is damaged");  // trie larger than the data
  TE_EXPECT_CONTAINS(refusal(model, table("BAAAAAAAAAD/")), "is damaged");  // text that is not UTF-8
  TE_EXPECT_CONTAINS(refusal(model, table("BAAAAP////8=")), "is damaged");  // leads out of the trie
  TE_EXPECT_CONTAINS(refusal(model, json{{"normalizer", {{"type", "Precompiled"}}}}),
                     "`precompiled_charsmap` is missing");
}

TEST_F(TokenModels, RefusesUnsupportedComponents) {
  const json model = bpe({{"a", 0}, {"</s>", 1}}, json::array());
  const auto with = [&](const char* key, const json& value) {
    json changed = model;
    changed[key] = value;
    return changed;
  };
  TE_EXPECT_CONTAINS(refusal(with("dropout", 0.1)), "encoding must not be random");
  TE_EXPECT_CONTAINS(refusal(with("continuing_subword_prefix", "##")),
                     "continuing_subword_prefix is not supported");
  TE_EXPECT_CONTAINS(refusal(with("end_of_word_suffix", "</w>")), "end_of_word_suffix is not supported");
  TE_EXPECT_CONTAINS(refusal(model, {{"decoder", {{"type", "CTC"}}}}), "the decoder `CTC` is not supported");
  TE_EXPECT_CONTAINS(refusal(model, {{"normalizer", {{"type", "New"}}}}),
                     "the normalizer `New` is not supported");
  TE_EXPECT_CONTAINS(refusal(model, {{"pre_tokenizer", {{"type", "New"}}}}),
                     "the pre-tokenizer `New` is not supported");
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const json sequence = {{"type", "Sequence"},
                         {"pretokenizers", json::array({byte_level, {{"type", "Whitespace"}}})}};
  TE_EXPECT_CONTAINS(refusal(model, {{"pre_tokenizer", sequence}}),
                     "follows ByteLevel, which must be the last");
}

}  // namespace
}  // namespace te
