// The other files of a tokenizer's folder: added tokens, special tokens, begin- and end-of-document tokens. Tokens
// equal those of transformers' AutoTokenizer for the same folders (scripts/make_tokenizer_fixtures.py --folders).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/json.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/tokenizer.h"
#include "text/tokenizers/utf8.h"

namespace te {
namespace {

using nlohmann::json;
using testing::read_file;
using testing::TextFolder;
using testing::user_error_of;
using testing::write_file;
using Tokens = std::vector<int32_t>;

const std::string kFixtures = TE_SOURCE_DIR "/tests/fixtures/tokenizers/";

/// The SentencePiece fixture as plain BPE: its user-defined piece is changed to a control symbol.
std::string model_without_user_symbols() {
  std::string model = read_file(kFixtures + "sentencepiece.model");
  model[model.find("<sep>") + 5 + 6] = 3;
  return model;
}

class TokenizerFolders : public ::testing::Test {
 protected:
  /// Writes a tokenizer's own file, `own` (vocab: vocab.json and merges.txt), and the other files of its folder.
  std::unique_ptr<text::Tokenizer> make(const std::string& own, const json& files) {
    std::filesystem::remove_all(folder_ / "t");
    std::filesystem::create_directories(folder_ / "t");
    if (own == "vocab") {
      const json model = parse_json(read_file(kFixtures + "gpt2_style.json"))["model"];
      std::string merges = "#version: 0.2\n";
      for (const json& merge : model["merges"])
        merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
      write_file(folder_ / "t/vocab.json", model["vocab"].dump());
      write_file(folder_ / "t/merges.txt", merges);
    } else if (own == "plain.model") {
      write_file(folder_ / "t/tokenizer.model", model_without_user_symbols());
    } else if (own == "sentencepiece.model") {
      write_file(folder_ / "t/tokenizer.model", read_file(kFixtures + own));
    } else {
      write_file(folder_ / "t/tokenizer.json", read_file(kFixtures + own));
    }
    for (const auto& [name, value] : files.items()) write_file(folder_ / ("t/" + name), value.dump());
    return text::make_tokenizer(folder_ / "t");
  }
  std::string refusal(const std::string& own, const json& files) {
    return user_error_of([&] { make(own, files); });
  }
  static Tokens encoded(const text::Tokenizer& tokenizer, const std::string& text,
                        text::SpecialTokens special = text::SpecialTokens::kMatch) {
    Tokens tokens;
    tokenizer.encode(text, tokens, special);
    return tokens;
  }
  static json token(const std::string& content, bool special) {
    return {{"content", content}, {"special", special}, {"normalized", false}};
  }

  TextFolder folder_;
};

TEST_F(TokenizerFolders, MatchesTransformers) {
  const json record = parse_json(read_file(kFixtures + "recorded_folders.json"));
  ASSERT_GE(record["folders"].size(), 20u);
  for (const auto& [name, folder] : record["folders"].items()) {
    SCOPED_TRACE(name);
    json files = folder["files"];
    files["config.json"] = {{"model_type", folder["model_type"]}};
    const auto tokenizer = make(folder["own"].get<std::string>(), files);
    EXPECT_EQ(tokenizer->vocab_size(), folder["vocab_size"].get<int64_t>());
    EXPECT_EQ(tokenizer->end_of_document(), folder["end"].get<int32_t>());
    const json& begin = folder["begin"];
    EXPECT_EQ(tokenizer->begin_of_document(),
              begin.is_null() ? std::nullopt : std::optional(begin.get<int32_t>()));
    for (size_t i = 0; i < record["texts"].size(); ++i) {
      const auto text = record["texts"][i].get<std::string>();
      EXPECT_EQ(encoded(*tokenizer, text), folder["tokens"][i].get<Tokens>()) << text::shown(text);
    }
  }
}

// Untrusted text produces no special tokens, whichever file defines them; other added tokens are still matched.
TEST_F(TokenizerFolders, SpecialTokensAsText) {
  const auto tokenizer =
      make("vocab", {{"added_tokens.json", {{"<a>", 420}, {"<b>", 421}}},
                     {"special_tokens_map.json", {{"additional_special_tokens", {"<a>"}}}}});
  EXPECT_EQ(encoded(*tokenizer, "<a><b>"), (Tokens{420, 421}));
  const Tokens plain = encoded(*tokenizer, "<a><b>", text::SpecialTokens::kAsText);
  EXPECT_GT(plain.size(), 2u);
  EXPECT_EQ(plain.back(), 421);
  EXPECT_EQ(tokenizer->decode(Tokens{420, 421}), "<a><b>");
}

// The ids of added tokens follow those of the SentencePiece model's pieces.
TEST_F(TokenizerFolders, SentencePieceDecodesAddedTokens) {
  const json config = {{"added_tokens_decoder", {{"2", token("</s>", true)}, {"500", token("<a>", true)}}}};
  const auto tokenizer = make("plain.model", {{"tokenizer_config.json", config}});
  EXPECT_EQ(tokenizer->vocab_size(), 501);
  EXPECT_EQ(tokenizer->find_token("<a>"), 500);
  const Tokens tokens = encoded(*tokenizer, "the<a> data</s>");
  EXPECT_EQ(std::ranges::count(tokens, 500), 1);
  EXPECT_EQ(tokens.back(), 2);
  // SentencePiece drops the space that it adds at the beginning, before 0.1.97 (Ubuntu 22.04) all spaces there.
  const auto plain = make("plain.model", {});
  const std::string space = plain->decode(encoded(*plain, "  the")) == "the" ? "" : " ";
  EXPECT_EQ(tokenizer->decode(tokens), "the<a>" + space + "data</s>");
  TE_EXPECT_CONTAINS(refusal("sentencepiece.model", {{"tokenizer_config.json", config}}),
                     "add the token `<a>`");
}

// transformers makes the default tokens of a class special if no file names them.
TEST_F(TokenizerFolders, ClassTokensAreMatched) {
  const json llama = {{"tokenizer_class", "LlamaTokenizer"}};
  for (const json& files :
       {json{{"tokenizer_config.json", llama}}, json{{"config.json", {{"model_type", "llama"}}}}}) {
    const auto tokenizer = make("plain.model", files);
    EXPECT_EQ(tokenizer->vocab_size(), 500);
    const Tokens tokens = encoded(*tokenizer, "<s>the</s> data<unk>");
    EXPECT_EQ(tokens.front(), 1);
    EXPECT_EQ(std::ranges::count(tokens, 2), 1);
    EXPECT_EQ(tokens.back(), 0);
  }
  json null = llama;
  null["eos_token"] = nullptr;
  EXPECT_EQ(
      std::ranges::count(encoded(*make("plain.model", {{"tokenizer_config.json", null}}), "the</s> data"), 2),
      0);
  // A token that the vocabulary lacks gets no id.
  EXPECT_EQ(make("gpt2_style.json", {{"tokenizer_config.json", llama}})->find_token("<unk>"), std::nullopt);
}

// add_prefix_space false: no space is put before a text, and none is dropped at the beginning of decoded text.
TEST_F(TokenizerFolders, SentencePieceAddsNoSpaceIfToldSo) {
  for (const char* own : {"plain.model", "sentencepiece.model"}) {
    const auto with_key = [&](const json& value, const char* name = "LlamaTokenizer") {
      const json config = {{"tokenizer_class", name}, {"add_prefix_space", value}};
      return make(own, {{"tokenizer_config.json", config}});
    };
    const auto plain = make(own, {}), always = with_key(true), never = with_key(false);
    const Tokens with_space = encoded(*plain, "the data");
    EXPECT_EQ(encoded(*always, "the data"), with_space);
    EXPECT_NE(encoded(*never, "the data"), with_space);
    EXPECT_EQ(encoded(*never, " the data"), with_space);
    EXPECT_EQ(never->decode(with_space), " the data");
    EXPECT_EQ(encoded(*with_key(false, "CodeLlamaTokenizer"), "the data"), with_space);
  }
}

// If add_prefix_space contradicts tokenizer.json, tokenizer.model is used, as for LlamaTokenizer in transformers 4.
TEST_F(TokenizerFolders, PrefixSpaceSelectsTheModel) {
  const json json_file = parse_json(read_file(kFixtures + "llama2_style.json"));
  const auto vocab_size = [&](json config) {
    const json files = {{"tokenizer_config.json", std::move(config)}, {"tokenizer.json", json_file}};
    return make("plain.model", files)->vocab_size();
  };
  EXPECT_EQ(vocab_size({{"tokenizer_class", "LlamaTokenizer"}}), 520);
  EXPECT_EQ(vocab_size({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", nullptr}}), 520);
  EXPECT_EQ(vocab_size({{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}}), 500);
  EXPECT_EQ(vocab_size({{"tokenizer_class", "CodeLlamaTokenizer"}, {"add_prefix_space", false}}), 520);
  for (const bool legacy : {true, false})  // tokenizer.json has the normalizer Prepend
    EXPECT_EQ(
        vocab_size(
            {{"tokenizer_class", "LlamaTokenizerFast"}, {"add_prefix_space", true}, {"legacy", legacy}}),
        legacy ? 520 : 500);
}

// `<s>` is an ordinary token of this vocabulary, as in Qwen's: it begins documents only if a file names it.
TEST_F(TokenizerFolders, OrdinaryTokensDoNotBeginDocuments) {
  json value = parse_json(read_file(kFixtures + "gpt2_style.json"));
  value["model"]["vocab"]["<s>"] = 420;
  const auto begin = [&](const json& files) {
    std::filesystem::remove_all(folder_ / "t");
    std::filesystem::create_directories(folder_ / "t");
    write_file(folder_ / "t/tokenizer.json", value.dump());
    for (const auto& [name, content] : files.items()) write_file(folder_ / ("t/" + name), content.dump());
    return text::make_tokenizer(folder_ / "t")->begin_of_document();
  };
  const auto config = [](json content) { return json{{"tokenizer_config.json", std::move(content)}}; };
  EXPECT_EQ(begin(json::object()), std::nullopt);
  EXPECT_EQ(begin(config({{"bos_token", nullptr}})), std::nullopt);
  EXPECT_EQ(begin(config(json::object())), std::nullopt);
  EXPECT_EQ(begin(config({{"tokenizer_class", "Qwen2Tokenizer"}})), std::nullopt);
  EXPECT_EQ(begin({{"config.json", {{"model_type", "qwen3"}}}}), std::nullopt);
  EXPECT_EQ(begin(config({{"bos_token", "<s>"}})), 420);
  EXPECT_EQ(begin({{"special_tokens_map.json", {{"bos_token", "<s>"}}}}), 420);
  // A tokenizer class with a default token; null takes precedence.
  EXPECT_EQ(begin(config({{"tokenizer_class", "LlamaTokenizerFast"}})), 420);
  EXPECT_EQ(begin(config({{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", nullptr}})), std::nullopt);
  // A special token with a known name, if there is no tokenizer_config.json.
  value["added_tokens"].push_back({{"id", 420}, {"content", "<s>"}, {"special", true}});
  EXPECT_EQ(begin(json::object()), 420);
  EXPECT_EQ(begin(config(json::object())), std::nullopt);
}

TEST_F(TokenizerFolders, EndOfDocument) {
  const auto end = [&](const json& files) { return make("gpt2_style.json", files)->end_of_document(); };
  EXPECT_EQ(end(json::object()), 0);  // <|endoftext|>
  EXPECT_EQ(end({{"generation_config.json", {{"eos_token_id", {7, 8}}}}}), 7);
  EXPECT_EQ(end({{"tokenizer_config.json", {{"eos_token", "token"}}},
                 {"generation_config.json", {{"eos_token_id", 7}}}}),
            make("gpt2_style.json", json::object())->find_token("token"));
  EXPECT_EQ(end({{"tokenizer_config.json", {{"eos_token", nullptr}}},
                 {"generation_config.json", {{"eos_token_id", 7}}}}),
            7);
}

TEST_F(TokenizerFolders, ContradictionsAreRefused) {
  const auto config = [](const json& content) { return json{{"tokenizer_config.json", content}}; };
  const auto decoder = [&](const std::string& id, const json& entry) {
    return config({{"added_tokens_decoder", {{id, entry}}}});
  };
  TE_EXPECT_CONTAINS(refusal("vocab", decoder("421", token("<a>", true))), "Hugging Face assigns 420");
  TE_EXPECT_CONTAINS(refusal("vocab", decoder("420", token("token", true))), "ids must agree");
  TE_EXPECT_CONTAINS(refusal("gpt2_style.json", decoder("420", token("<|endoftext|>", true))),
                     "420 in added_tokens_decoder of tokenizer_config.json");
  TE_EXPECT_CONTAINS(refusal("vocab", decoder("x", token("<a>", true))), "the key must be the token's id");
  TE_EXPECT_CONTAINS(refusal("vocab", decoder("420", json::array())), "must be an object");
  TE_EXPECT_CONTAINS(refusal("vocab", decoder("420", {{"content", ""}})), "must be a text");
  TE_EXPECT_CONTAINS(refusal("vocab", {{"added_tokens.json", {{"<a>", "x"}}}}), "must be an integer");
  TE_EXPECT_CONTAINS(refusal("vocab", config({{"additional_special_tokens", {3}}})), "must be a string");
  TE_EXPECT_CONTAINS(refusal("vocab", config({{"bos_token", "<a>"}})),
                     "`<a>`, a special token of the files in its folder, is not in the vocabulary");
  // transformers adds the tokens of any key that ends in _token, and splits special tokens if told so.
  TE_EXPECT_CONTAINS(refusal("vocab", config({{"image_token", "<a>"}})),
                     "`<a>`, a special token of the files in its folder, is not in the vocabulary");
  EXPECT_EQ(refusal("vocab", config({{"image_token", "token"}, {"add_bos_token", true}})), "");
  TE_EXPECT_CONTAINS(refusal("gpt2_style.json", config({{"split_special_tokens", true}})),
                     "split_special_tokens: is true, which te-train does not support");
  TE_EXPECT_CONTAINS(refusal("vocab", config({{"tokenizer_class", "CLIPTokenizer"}})),
                     "its class is `CLIPTokenizer`");
}

// Replace every key of the files, and each file, by other types: refused or ignored, never a crash.
TEST_F(TokenizerFolders, DamagedFilesAreRefused) {
  const json record = parse_json(read_file(kFixtures + "recorded_folders.json"));
  json files = record["folders"]["vocab_decoder"]["files"];
  files["special_tokens_map.json"] = record["folders"]["vocab_added_map"]["files"]["special_tokens_map.json"];
  files["generation_config.json"] = {{"eos_token_id", {0, 1}}};
  files["config.json"] = {{"model_type", "gpt2"}};
  for (const auto& [name, value] : files.items()) {
    for (const auto& [key, unused] : value.items()) {
      for (const json& other :
           {json(7), json("x"), json::array({1, "a"}), json(nullptr), json(-1.5), json({{"a", 1}})}) {
        json changed = files;
        changed[name][key] = other;
        if (name != "tokenizer_config.json") changed["tokenizer_config.json"].erase("added_tokens_decoder");
        refusal("vocab", changed);
      }
    }
    json changed = files;
    changed[name] = "not an object";
    if (name == "config.json") continue;
    if (name != "tokenizer_config.json") changed["tokenizer_config.json"].erase("added_tokens_decoder");
    TE_EXPECT_CONTAINS(refusal("vocab", changed), name + ": is of type string; it must be an object");
  }
}

}  // namespace
}  // namespace te
