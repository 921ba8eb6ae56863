// Streamed text: every part is valid UTF-8, and stop strings may span tokens.
#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <memory>

#include "text/tokenizer.h"
#include "text/tokenizers/utf8.h"

namespace te::generate {
namespace {

std::vector<int32_t> bytes_of(const std::string& text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

/// Adds tokens; returns the text after each of them and at the end.
std::vector<std::string> stream(const text::Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
                                const std::vector<std::string>& stops = {},
                                const std::vector<int32_t>& prompt = {}) {
  TextStream text(tokenizer, prompt, stops);
  std::vector<std::string> parts;
  for (const int32_t token : tokens) parts.push_back(text.add(token));
  parts.push_back(text.finish());
  for (const std::string& part : parts) EXPECT_EQ(text::valid_utf8_prefix(part), part.size()) << part;
  return parts;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

using Parts = std::vector<std::string>;

TEST(TextStream, CharactersAreComplete) {
  const auto bytes = text::make_tokenizer("bytes");
  EXPECT_EQ(stream(*bytes, bytes_of("aé")), (Parts{"a", "", "é", ""}));
  EXPECT_EQ(stream(*bytes, bytes_of("😀!")), (Parts{"", "", "", "😀", "!", ""}));
  EXPECT_EQ(stream(*bytes, bytes_of("…x")), (Parts{"", "", "…", "x", ""}));
}

TEST(TextStream, InvalidBytesBecomeReplacementCharacters) {
  const auto bytes = text::make_tokenizer("bytes");
  EXPECT_EQ(joined(stream(*bytes, bytes_of("a\xFFz"))), "a\uFFFDz");
  EXPECT_EQ(joined(stream(*bytes, bytes_of("a\xC3"))), "a\uFFFD");          // the second byte is missing
  EXPECT_EQ(joined(stream(*bytes, bytes_of("a\xC3z"))), "a\uFFFDz");        // also here
  EXPECT_EQ(joined(stream(*bytes, bytes_of("\xF0\x9F\x98"))), "\uFFFD");    // a truncated emoji
  EXPECT_EQ(joined(stream(*bytes, bytes_of("\xED\xA0\x80z"))), "\uFFFDz");  // a surrogate
  EXPECT_EQ(valid_utf8("ok\xFE\xFF"), "ok\uFFFD");
}

TEST(TextStream, StopStringsSpanTokens) {
  const auto bytes = text::make_tokenizer("bytes");
  // "END" has three tokens; text that could be its start is held back.
  EXPECT_EQ(stream(*bytes, bytes_of("aENEND"), {"END"}), (Parts{"a", "", "", "EN", "", "", ""}));
  TextStream text(*bytes, {}, {"END", "\n\n"});
  for (const int32_t token : bytes_of("one\ntwo\n")) {
    text.add(token);
    EXPECT_FALSE(text.stopped());
  }
  EXPECT_EQ(text.add('\n'), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.add('x'), "");
  EXPECT_EQ(text.finish(), "");
  // The stop string that starts first ends the text.
  EXPECT_EQ(joined(stream(*bytes, bytes_of("abcdef"), {"de", "cd"})), "ab");
  // finish() returns text that was held back but is not a stop string.
  EXPECT_EQ(joined(stream(*bytes, bytes_of("the E"), {"END"})), "the E");
  // Stop strings with multi-byte characters, when each token is a byte.
  EXPECT_EQ(joined(stream(*bytes, bytes_of("aé!b"), {"é!"})), "a");
  EXPECT_EQ(joined(stream(*bytes, bytes_of("aab"), {"ab"})), "a");
}

/// Decodes like SentencePiece: a word token starts with a space, which the first word of a text loses. Tokens from 100
/// on are bytes; bytes that do not form a character are decoded as U+FFFD.
class WordTokenizer final : public text::Tokenizer {
 public:
  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text, pending;
    const auto flush = [&] {
      text::for_each_utf8_run(pending, [&](std::string_view run, bool valid) {
        if (valid) text += run;
        for (size_t i = 0; !valid && i < run.size(); ++i) text += "\uFFFD";
      });
      pending.clear();
    };
    for (const int32_t token : tokens) {
      if (token >= 100) {
        pending += static_cast<char>(token - 100);
        continue;
      }
      flush();
      text += token == 0 ? "ing" : " word" + std::to_string(token);
    }
    flush();
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  int64_t vocab_size() const override { return 356; }
  int32_t end_of_document() const override { return 99; }
  std::string name() const override { return "words"; }
  std::optional<int32_t> find_token(std::string_view) const override { return {}; }

 private:
  void encode_text(std::string_view, std::vector<int32_t>&, text::SpecialTokens) const override {}
};

TEST(TextStream, SpacesBelongToWords) {
  const WordTokenizer words;
  EXPECT_EQ(stream(words, {1, 2, 0, 3}), (Parts{"word1", " word2", "ing", " word3", ""}));
  EXPECT_EQ(stream(words, {1, 2}, {}, {5}),
            (Parts{" word1", " word2", ""}));  // not the first word of the text
  std::vector<int32_t> many;
  std::string expected;
  for (int32_t i = 0; i < 100; ++i) {
    many.push_back(i % 7 == 0 ? 0 : i % 90 + 1);
    expected += i % 7 == 0 ? "ing" : " word" + std::to_string(i % 90 + 1);
  }
  EXPECT_EQ(joined(stream(words, many)), expected);
}

TEST(TextStream, ByteTokensWaitForTheirCharacter) {
  const WordTokenizer words;
  const auto emoji = bytes_of("😀");
  std::vector<int32_t> tokens = {1};
  for (const int32_t byte : emoji) tokens.push_back(100 + byte);
  tokens.push_back(2);
  EXPECT_EQ(stream(words, tokens), (Parts{"word1", "", "", "", "😀", " word2", ""}));
  EXPECT_EQ(joined(stream(words, {1, 100 + 0xF0, 100 + 0x9F, 2})), "word1\uFFFD\uFFFD word2");
  EXPECT_EQ(joined(stream(words, {1, 100 + 0xF0})), "word1\uFFFD");
}

}  // namespace
}  // namespace te::generate
