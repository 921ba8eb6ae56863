// Splitting and trimming of text, and numbers and times as text.
#include "core/strings.h"

#include <gtest/gtest.h>

namespace te {
namespace {

using Parts = std::vector<std::string_view>;

TEST(Strings, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b", ','), (Parts{"a", "", "b"}));
  EXPECT_EQ(split("a,", ','), (Parts{"a", ""}));
  EXPECT_EQ(split("", ','), (Parts{""}));
}

TEST(Strings, TrimsBothEnds) {
  EXPECT_EQ(trimmed(" \ta b\r "), "a b");
  EXPECT_EQ(trimmed(" \t"), "");
  EXPECT_EQ(trimmed("\t a", " "), "\t a");
}

TEST(Strings, WritesNumbersAsRanges) {
  EXPECT_EQ(number_ranges({}), "");
  EXPECT_EQ(number_ranges(std::vector{3}), "3");
  EXPECT_EQ(number_ranges(std::vector{0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

TEST(Strings, WritesTimesInMinutesOrHours) {
  EXPECT_EQ(human_time(0), "00:00");
  EXPECT_EQ(human_time(-3), "00:00");
  EXPECT_EQ(human_time(59.4), "00:59");
  EXPECT_EQ(human_time(59.6), "01:00");
  EXPECT_EQ(human_time(3599), "59:59");
  EXPECT_EQ(human_time(3723), "1:02:03");
  EXPECT_EQ(human_time(100 * 3600), "100:00:00");
}

TEST(Strings, WritesThousandsSeparators) {
  EXPECT_EQ(with_separators(0), "0");
  EXPECT_EQ(with_separators(999), "999");
  EXPECT_EQ(with_separators(1234567), "1,234,567");
}

}  // namespace
}  // namespace te
