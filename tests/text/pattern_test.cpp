// Regular expressions in Oniguruma's syntax. The expected spans were recorded from Hugging Face tokenizers 0.23.3
// (Split with the behavior "isolated").
#include "text/tokenizers/pattern.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "testing/files.h"
#include "testing/temporary_folder.h"

namespace te {
namespace {

using testing::user_error_of;

std::vector<std::string> spans(const std::string& regex, std::string_view text) {
  const text::Pattern pattern(regex, "test");
  text::PatternWorkspace workspace;
  std::vector<std::string> result;
  pattern.split(workspace, text, true, [&](size_t begin, size_t end, bool) {
    result.emplace_back(text.substr(begin, end - begin));
  });
  return result;
}

using Spans = std::vector<std::string>;

TEST(Pattern, WordCharactersInAndOutOfBrackets) {
  const std::string text = "a\u00b2-\u00bd+\u00b9b";
  EXPECT_EQ(spans(R"(\w+)", text), (Spans{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(spans(R"(\p{Word}+)", text), (Spans{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(spans(R"(\W+)", text), (Spans{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(spans(R"([\w]+)", text), (Spans{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(spans(R"([\p{Word}x]+)", text), (Spans{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(spans(R"([^\s\w]+)", text), (Spans{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(spans(R"([\W]+)", text), (Spans{"a", "\u00b2-\u00bd+\u00b9", "b"}));
}

TEST(Pattern, IgnoringCase) {
  const std::string text = "'S'\u017f'Tk\u212aK'LLx";
  EXPECT_EQ(spans("(?i:'s|'t|'re|'ve|'m|'ll|'d)", text),
            (Spans{"'S", "'\u017f", "'T", "k\u212aK", "'LL", "x"}));
  EXPECT_EQ(spans("'(?i:[sdmt]|ll|ve|re)", text), (Spans{"'S", "'\u017f", "'T", "k\u212aK", "'LL", "x"}));
  EXPECT_EQ(spans("(?i:k)k", text), (Spans{"'S'\u017f'Tk\u212aK'LLx"}));
  EXPECT_EQ(spans("(?i)x(?-i:ss)", "Xss"), (Spans{"Xss"}));
  // The two libraries differ where one character matches several, or case folding extends a class.
  for (const char* regex : {"(?i:ss)", "(?i:a|(?:xSt))", "(?i)ffi", "(?i:\u00df)", "(?i:[\u00e0-\u00e9])",
                            R"((?i:\u00df))", R"((?i:[\p{Lu}x]))", R"((?i:[^\P{L}]))", R"((?i:[\x{df}]))"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { spans(regex, "x"); }), "is not supported");
  }
  EXPECT_EQ(spans("(?i:a)(?:ss)", "Assa"), (Spans{"Ass", "a"}));
}

TEST(Pattern, PosixClasses) {
  const std::string text = "aB1_\u00e9\u00b2+,\n pLx";
  EXPECT_EQ(spans("[[:alpha:]]+", text), (Spans{"aB", "1_", "\u00e9", "\u00b2+,\n ", "pLx"}));
  EXPECT_EQ(spans("[^[:punct:]]+", text), (Spans{"aB1", "_", "\u00e9\u00b2", "+,", "\n pLx"}));
  EXPECT_EQ(spans("[[:^alnum:]]+", text), (Spans{"aB1", "_", "\u00e9", "\u00b2+,\n ", "pLx"}));
  EXPECT_EQ(spans("[[:upper:][:digit:]]", text), (Spans{"a", "B", "1", "_\u00e9\u00b2+,\n p", "L", "x"}));
  EXPECT_EQ(spans("[[:space:]x]+", text), (Spans{"aB1_\u00e9\u00b2+,", "\n ", "pL", "x"}));
  for (const char* regex : {"[[:nothing:]]", "(?i:[[:alpha:]])", "[a[b]]"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { spans(regex, "x"); }), "is not supported");
  }
}

TEST(Pattern, OptionsAndEscapedLetters) {
  const std::string text = "aB1_\u00e9\u00b2+,\n pLx";
  EXPECT_EQ(spans("(?m:1.*p)", text), (Spans{"aB", "1_\u00e9\u00b2+,\n p", "Lx"}));
  EXPECT_EQ(spans("(?mi)b.*P", text), (Spans{"a", "B1_\u00e9\u00b2+,\n p", "Lx"}));
  EXPECT_EQ(spans("(?m:.(?-m:.+))", text), (Spans{"aB1_\u00e9\u00b2+,", "\n pLx"}));
  // Without braces \p is the letter p.
  EXPECT_EQ(spans(R"(\pL)", text), (Spans{"aB1_\u00e9\u00b2+,\n ", "pL", "x"}));
  EXPECT_EQ(spans(R"([\PLa])", text), (Spans{"a", "B1_\u00e9\u00b2+,\n p", "L", "x"}));
  for (const char* regex : {"a(?m)b", "(?s:a)", "(?x:a)", "(?i-m-i:a)"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { spans(regex, "x"); }), "is not supported");
  }
}

TEST(Pattern, Properties) {
  EXPECT_EQ(spans(R"(\p{Han}+)", "a\u4e2d\u6587b"), (Spans{"a", "\u4e2d\u6587", "b"}));
  EXPECT_EQ(spans(R"(\p{^white space}+)", "a b"), (Spans{"a", " ", "b"}));
  // Properties with another Unicode version or another meaning in PCRE2.
  for (const char* name : {"Emoji", "ID_Start", "Xan", "L&", "Nothing", ""}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { spans(fmt::format("\\p{{{}}}", name), "x"); }), "the property");
  }
}

}  // namespace
}  // namespace te
