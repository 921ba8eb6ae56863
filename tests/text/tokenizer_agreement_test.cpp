// Tokens equal those of the reference implementations (Hugging Face tokenizers, SentencePiece) for the same texts; they
// are recorded in tests/fixtures/tokenizers by scripts/make_tokenizer_fixtures.py. decode() restores invalid UTF-8
// bytes, which the references refuse or replace.
#include <gtest/gtest.h>
#include <zlib.h>

#include "core/json.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/tokenizer.h"
#include "text/tokenizers/utf8.h"

namespace te {
namespace {

using testing::read_file;

nlohmann::json read_fixture(const std::string& name) {
  return parse_json(read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/" + name));
}

/// The record with a tokenizer's tokens.
const nlohmann::json& recorded(const std::string& tokenizer) {
  static const nlohmann::json models = read_fixture("recorded.json"),
                              components = read_fixture("recorded_components.json"),
                              precompiled = read_fixture("recorded_precompiled.json");
  if (precompiled["tokens"].contains(tokenizer)) return precompiled;
  return components["tokens"].contains(tokenizer) ? components : models;
}

std::vector<int32_t> encoded(const text::Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens;
  tokenizer.encode(text, tokens);
  return tokens;
}

/// Compares tokens with a record: a list, or their number and CRC-32.
void expect_recorded(const std::vector<int32_t>& tokens, const nlohmann::json& expected,
                     const std::string& text) {
  if (expected.is_array()) {
    EXPECT_EQ(tokens, expected.get<std::vector<int32_t>>()) << text::shown(text);
    return;
  }
  EXPECT_EQ(tokens.size(), expected["count"].get<size_t>()) << text::shown(text);
  const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(tokens.data()),
                           static_cast<uInt>(tokens.size() * sizeof(int32_t)));
  EXPECT_EQ(crc, expected["crc32"].get<uint64_t>()) << text::shown(text);
}

class TokenizerAgreement : public ::testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::make_tokenizer(std::string(TE_SOURCE_DIR "/tests/fixtures/tokenizers/") + GetParam());
};

class ComponentDecoding : public TokenizerAgreement {};

TEST_P(TokenizerAgreement, HostileTexts) {
  const auto& texts = recorded(GetParam())["texts"];
  const auto& tokens = recorded(GetParam())["tokens"][GetParam()];
  ASSERT_EQ(texts.size(), tokens.size());
  ASSERT_GT(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    expect_recorded(encoded(*tokenizer_, text), tokens[i], text);
  }
}

TEST_P(ComponentDecoding, MatchesTheRecordedTexts) {
  const nlohmann::json& record = recorded(GetParam());
  const auto& decoded = record["decoded"][GetParam()];
  const auto& texts = record["texts"];
  ASSERT_EQ(texts.size(), decoded.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const std::string own = tokenizer_->decode(encoded(*tokenizer_, text));
    const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(own.data()), static_cast<uInt>(own.size()));
    EXPECT_EQ(crc, decoded[i].get<uint64_t>()) << text::shown(text) << " " << text::shown(own);
  }
}

TEST_P(TokenizerAgreement, EveryCodePoint) {
  std::string text;
  std::vector<int32_t> tokens;
  size_t count = 0;
  const auto add = [&](uint32_t begin, uint32_t end) {
    for (uint32_t c = begin; c < end; ++c) {
      text::append_utf8(c, text);
      if (++count % 500 != 0) continue;
      tokenizer_->encode(text, tokens);
      text.clear();
    }
  };
  add(0, 0xD800);
  add(0xE000, 0x33480);
  add(0xE0000, 0xE0200);
  tokenizer_->encode(text, tokens);
  expect_recorded(tokens, recorded(GetParam())["every_code_point"][GetParam()], "every code point");
}

TEST_P(TokenizerAgreement, EmptyTextsAndInvalidUtf8) {
  EXPECT_TRUE(encoded(*tokenizer_, "").empty());
  if (std::string(GetParam()) == "sentencepiece.model") {
    // SentencePiece replaces each invalid byte.
    EXPECT_EQ(encoded(*tokenizer_, "a\xff\xc3z"), encoded(*tokenizer_, "a\xEF\xBF\xBD\xEF\xBF\xBDz"));
    return;
  }
  // Normalizers, and vocabularies without bytes, do not preserve the text.
  if (recorded(GetParam()).contains("decoded")) return;
  for (const std::string text : {"\xff", "a\xc3", "\xe4\xb8 b", "\xf0\x9f\x98", "x\xed\xa0\x80y",
                                 "\xc0\x80\xf4\x90\x80\x80", " \x80 \x80 ", "the\xffthe 12\xfe"}) {
    EXPECT_EQ(tokenizer_->decode(encoded(*tokenizer_, text)), text) << text::shown(text);
  }
  // The text around invalid bytes is encoded as it is without them.
  if (std::string(GetParam()) == "gpt2_style.json") {
    std::vector<int32_t> parts = encoded(*tokenizer_, "the 12");
    for (const std::string part : {"\xff\xfe", " tokens"}) tokenizer_->encode(part, parts);
    EXPECT_EQ(encoded(*tokenizer_, "the 12\xff\xfe tokens"), parts);
  }
}

std::string kind_name(const ::testing::TestParamInfo<const char*>& info) {
  const std::string name = info.param;
  return name.substr(0, name.find('.'));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerAgreement,
                         ::testing::Values("gpt2_style.json", "llama3_style.json", "properties.json",
                                           "llama2_style.json", "added_token_options.json",
                                           "sentencepiece.model", "neox_style.json", "unigram_style.json",
                                           "bert_style.json", "words_style.json", "classes.json",
                                           "precompiled.json", "scripts.json"),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(Kinds, ComponentDecoding,
                         ::testing::Values("neox_style.json", "unigram_style.json", "bert_style.json",
                                           "words_style.json", "classes.json", "precompiled.json",
                                           "scripts.json"),
                         kind_name);

}  // namespace
}  // namespace te
