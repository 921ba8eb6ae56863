// Regular expressions in Oniguruma's syntax. The expected pieces were recorded from Hugging Face tokenizers 0.23.3
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

std::vector<std::string> pieces(const std::string& regex, std::string_view text) {
  const text::Pattern pattern(regex, "test");
  text::PatternWorkspace workspace;
  std::vector<std::string> result;
  pattern.split(workspace, text, true, [&](size_t begin, size_t end, bool) {
    result.emplace_back(text.substr(begin, end - begin));
  });
  return result;
}

using Pieces = std::vector<std::string>;

TEST(Pattern, WordCharactersInAndOutOfBrackets) {
  const std::string text = "a\u00b2-\u00bd+\u00b9b";
  EXPECT_EQ(pieces(R"(\w+)", text), (Pieces{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(pieces(R"(\p{Word}+)", text), (Pieces{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(pieces(R"(\W+)", text), (Pieces{"a\u00b2", "-", "\u00bd", "+", "\u00b9b"}));
  EXPECT_EQ(pieces(R"([\w]+)", text), (Pieces{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(pieces(R"([\p{Word}x]+)", text), (Pieces{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(pieces(R"([^\s\w]+)", text), (Pieces{"a", "\u00b2-\u00bd+\u00b9", "b"}));
  EXPECT_EQ(pieces(R"([\W]+)", text), (Pieces{"a", "\u00b2-\u00bd+\u00b9", "b"}));
}

TEST(Pattern, IgnoringCase) {
  const std::string text = "'S'\u017f'Tk\u212aK'LLx";
  EXPECT_EQ(pieces("(?i:'s|'t|'re|'ve|'m|'ll|'d)", text),
            (Pieces{"'S", "'\u017f", "'T", "k\u212aK", "'LL", "x"}));
  EXPECT_EQ(pieces("'(?i:[sdmt]|ll|ve|re)", text), (Pieces{"'S", "'\u017f", "'T", "k\u212aK", "'LL", "x"}));
  EXPECT_EQ(pieces("(?i:k)k", text), (Pieces{"'S'\u017f'Tk\u212aK'LLx"}));
  EXPECT_EQ(pieces("(?i)x(?-i:ss)", "Xss"), (Pieces{"Xss"}));
  // The two libraries differ where one character matches several, or case folding extends a class.
  for (const char* regex : {"(?i:ss)", "(?i:a|(?:xSt))", "(?i)ffi", "(?i:\u00df)", "(?i:[\u00e0-\u00e9])",
                            R"((?i:\u00df))", R"((?i:[\p{Lu}x]))", R"((?i:[^\P{L}]))", R"((?i:[\x{df}]))"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { pieces(regex, "x"); }), "is not supported");
  }
  EXPECT_EQ(pieces("(?i:a)(?:ss)", "Assa"), (Pieces{"Ass", "a"}));
}

TEST(Pattern, PosixClasses) {
  const std::string text = "aB1_\u00e9\u00b2+,\n pLx";
  EXPECT_EQ(pieces("[[:alpha:]]+", text), (Pieces{"aB", "1_", "\u00e9", "\u00b2+,\n ", "pLx"}));
  EXPECT_EQ(pieces("[^[:punct:]]+", text), (Pieces{"aB1", "_", "\u00e9\u00b2", "+,", "\n pLx"}));
  EXPECT_EQ(pieces("[[:^alnum:]]+", text), (Pieces{"aB1", "_", "\u00e9", "\u00b2+,\n ", "pLx"}));
  EXPECT_EQ(pieces("[[:upper:][:digit:]]", text), (Pieces{"a", "B", "1", "_\u00e9\u00b2+,\n p", "L", "x"}));
  EXPECT_EQ(pieces("[[:space:]x]+", text), (Pieces{"aB1_\u00e9\u00b2+,", "\n ", "pL", "x"}));
  for (const char* regex : {"[[:nothing:]]", "(?i:[[:alpha:]])", "[a[b]]"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { pieces(regex, "x"); }), "is not supported");
  }
}

TEST(Pattern, OptionsAndEscapedLetters) {
  const std::string text = "aB1_\u00e9\u00b2+,\n pLx";
  EXPECT_EQ(pieces("(?m:1.*p)", text), (Pieces{"aB", "1_\u00e9\u00b2+,\n p", "Lx"}));
  EXPECT_EQ(pieces("(?mi)b.*P", text), (Pieces{"a", "B1_\u00e9\u00b2+,\n p", "Lx"}));
  EXPECT_EQ(pieces("(?m:.(?-m:.+))", text), (Pieces{"aB1_\u00e9\u00b2+,", "\n pLx"}));
  // Without braces \p is the letter p.
  EXPECT_EQ(pieces(R"(\pL)", text), (Pieces{"aB1_\u00e9\u00b2+,\n ", "pL", "x"}));
  EXPECT_EQ(pieces(R"([\PLa])", text), (Pieces{"a", "B1_\u00e9\u00b2+,\n p", "L", "x"}));
  for (const char* regex : {"a(?m)b", "(?s:a)", "(?x:a)", "(?i-m-i:a)"}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { pieces(regex, "x"); }), "is not supported");
  }
}

TEST(Pattern, Properties) {
  EXPECT_EQ(pieces(R"(\p{Han}+)", "a\u4e2d\u6587b"), (Pieces{"a", "\u4e2d\u6587", "b"}));
  EXPECT_EQ(pieces(R"(\p{^white space}+)", "a b"), (Pieces{"a", " ", "b"}));
  // Properties with another Unicode version or another meaning in PCRE2.
  for (const char* name : {"Emoji", "ID_Start", "Xan", "L&", "Nothing", ""}) {
    TE_EXPECT_CONTAINS(user_error_of([&] { pieces(fmt::format("\\p{{{}}}", name), "x"); }), "the property");
  }
}

}  // namespace
}  // namespace te
