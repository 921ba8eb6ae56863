// Wrapping of lines to a terminal's width, and when colors are used.
#include "core/terminal.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace te {
namespace {

TEST(Wrapped, BreaksAtBlanks) {
  EXPECT_EQ(wrapped("one two three", 40, 4), "one two three\n");
  EXPECT_EQ(wrapped("one two three", 13, 4), "one two three\n");
  EXPECT_EQ(wrapped("one two three", 12, 4), "one two\n    three\n");
  EXPECT_EQ(wrapped("one two three", 7, 2), "one two\n  three\n");
  EXPECT_EQ(wrapped("", 7, 2), "\n");
}

TEST(Wrapped, KeepsLongWordsAndRepeatedBlanks) {
  EXPECT_EQ(wrapped("a averylongword b", 6, 1), "a\n averylongword\n b\n");
  EXPECT_EQ(wrapped("label     one two", 13, 10), "label     one\n          two\n");
  EXPECT_EQ(wrapped("  label one two", 11, 4), "  label one\n    two\n");
}

TEST(Wrapped, WrapsEachLineOfAText) {
  EXPECT_EQ(wrapped_lines("one two three\n  four five six\n\nseven", 11),
            "one two\n    three\n  four five\n      six\n\nseven\n");
  EXPECT_EQ(wrapped_lines("", 11), "");
}

// The tests' output may be a terminal or not; COLUMNS matters only if it is not.
TEST(ConsoleTerminal, NoColorWithoutTerminalOrWithNoColorSet) {
  const Terminal before = console_terminal();
  EXPECT_GE(before.columns, 1);
  if (!before.is_terminal) {
    EXPECT_FALSE(before.color);
    ::setenv("COLUMNS", "91", 1);
    EXPECT_EQ(console_terminal().columns, 91);
    ::setenv("COLUMNS", "many", 1);
    EXPECT_EQ(console_terminal().columns, 120);
    ::unsetenv("COLUMNS");
    EXPECT_EQ(console_terminal().columns, 120);
  }
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(console_terminal().color);
  ::unsetenv("NO_COLOR");
}

}  // namespace
}  // namespace te
