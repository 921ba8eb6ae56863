#include "core/printable.h"

#include <gtest/gtest.h>

namespace te {
namespace {

TEST(Printable, KeepsPrintableText) {
  for (const char* text : {"", "layers.0.weight", "größe \"x\" \\n", "日本語 😀", "\xEF\xBF\xBD"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\x1b[2Jb\n\r\t\x7f"), R"(a\x1b[2Jb\x0a\x0d\x09\x7f)");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), R"(\x00x)");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            R"(\xc2\x9b31m)");                              // U+009B, a control sequence of one character
  EXPECT_EQ(printable("\xE2\x80\xAE"), R"(\xe2\x80\xae)");  // U+202E, right-to-left override
  EXPECT_EQ(printable("\xE2\x81\xA6"), R"(\xe2\x81\xa6)");  // U+2066, left-to-right isolate
}

TEST(Printable, EscapesInvalidUtf8) {
  EXPECT_EQ(printable("\xFF"), R"(\xff)");
  EXPECT_EQ(printable("\xC0\x9B"), R"(\xc0\x9b)");                  // overlong
  EXPECT_EQ(printable("\xE0\x82\x9B"), R"(\xe0\x82\x9b)");          // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), R"(\xed\xa0\x80)");          // surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), R"(\xf4\x90\x80\x80)");  // above U+10FFFF
  EXPECT_EQ(printable("ab\xE2\x82"), R"(ab\xe2\x82)");              // truncated
}

}  // namespace
}  // namespace te
