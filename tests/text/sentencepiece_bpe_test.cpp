// Plain BPE models of SentencePiece give the tokens of libsentencepiece; other models are recognized as not plain. The
// models are variants of a small one in tests/fixtures/tokenizers with changed bytes.
#include "text/tokenizers/sentencepiece_bpe.h"
#include "core/json.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <cstring>
#include <random>

#include "core/error.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"
#include "text/tokenizers/sentencepiece_tokenizer.h"
#include "text/tokenizers/utf8.h"

namespace te {
namespace {

using testing::read_file;

/// The fixture, with its user-defined piece <sep> changed to a control symbol (or another type).
std::string plain_model(uint8_t type_of_sep = 3) {
  std::string model = read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/sentencepiece.model");
  const size_t at = model.find("<sep>") + 5;
  TE_CHECK(model[at] == '\x15' && model[at + 5] == '\x18' && model[at + 6] == '\x04',
           "the fixture has changed");
  model[at + 6] = static_cast<char>(type_of_sep);
  return model;
}

/// The model with the score of each piece i replaced by score(i).
template <class Score>
std::string with_scores(std::string model, Score score) {
  size_t at = 0;
  for (int i = 0; model[at] == '\x0a'; ++i) {  // a piece: its text, its score
    const size_t size = static_cast<uint8_t>(model[at + 1]), text = static_cast<uint8_t>(model[at + 3]);
    const float value = score(i);
    std::memcpy(&model[at + 2 + 2 + text + 1], &value, 4);
    at += 2 + size;
  }
  return model;
}

std::vector<std::string> texts() {
  std::vector<std::string> result;
  const auto recorded = parse_json(read_file(TE_SOURCE_DIR "/tests/fixtures/tokenizers/recorded.json"));
  for (const auto& text : recorded["texts"]) result.push_back(text.get<std::string>());
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int part = 0; part < 40; ++part) {
      switch (random() % 5) {
        case 0:
          text::append_utf8(static_cast<uint32_t>(random() % 0xD800), text);
          break;
        case 1:
          text += static_cast<char>(random() % 256);  // mostly invalid UTF-8
          break;
        case 2:
          text += " the ";
          break;
        default:
          text += static_cast<char>(' ' + random() % 95);
      }
    }
    result.push_back(text);
  }
  return result;
}

void expect_same_tokens(const std::string& model) {
  const text::SentencePieceTokenizer tokenizer(model, "test");
  ASSERT_TRUE(tokenizer.is_plain_bpe());
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.LoadFromSerializedProto(model).ok());
  for (const std::string& text : texts()) {
    std::vector<int> expected;
    ASSERT_TRUE(processor.Encode(text, &expected).ok());
    std::vector<int32_t> tokens;
    tokenizer.encode(text, tokens);
    EXPECT_EQ(tokens, std::vector<int32_t>(expected.begin(), expected.end())) << text::shown(text);
  }
}

TEST(SentencePieceBpe, MatchesTheLibrary) {
  expect_same_tokens(plain_model());
}

TEST(SentencePieceBpe, PiecesOfEqualScoreMergeFromTheLeft) {
  expect_same_tokens(with_scores(plain_model(), [](int) { return -1.0f; }));
  expect_same_tokens(with_scores(plain_model(), [](int i) { return static_cast<float>(i % 5); }));
}

TEST(SentencePieceBpe, OtherModelsUseTheLibrary) {
  EXPECT_TRUE(text::read_sentencepiece_bpe(plain_model()).has_value());
  EXPECT_FALSE(text::read_sentencepiece_bpe(plain_model(4)).has_value());  // user-defined
  EXPECT_FALSE(text::read_sentencepiece_bpe(plain_model(5)).has_value());  // unused
  EXPECT_FALSE(text::SentencePieceTokenizer(plain_model(4), "test").is_plain_bpe());
  EXPECT_FALSE(text::read_sentencepiece_bpe(with_scores(plain_model(), [](int) { return NAN; })).has_value());
  std::string model = plain_model();
  const size_t rules = model.rfind("identity"), at = model.find(std::string("\x20\0", 2), rules);
  ASSERT_NE(at, std::string::npos);
  model[at + 1] = 1;  // remove_extra_whitespaces
  EXPECT_FALSE(text::read_sentencepiece_bpe(model).has_value());
  EXPECT_FALSE(text::read_sentencepiece_bpe("").has_value());
  EXPECT_FALSE(text::read_sentencepiece_bpe("no model").has_value());
}

TEST(SentencePieceBpe, DamagedModels) {
  const std::string model = plain_model();
  for (size_t length = 0; length < model.size(); length += 1 + length / 50) {
    text::read_sentencepiece_bpe(model.substr(0, length));
  }
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = model;
    damaged[random() % damaged.size()] = static_cast<char>(random());
    if (auto spec = text::read_sentencepiece_bpe(damaged)) text::PipelineTokenizer(std::move(*spec), "test");
  }
}

}  // namespace
}  // namespace te
