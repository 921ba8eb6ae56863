#include "core/strings.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

namespace te {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string_view trimmed(std::string_view text, std::string_view blanks) {
  const size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_plain_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
}

std::string number_ranges(std::span<const int> numbers) {
  std::vector<std::string> ranges;
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;) ++end;
    ranges.push_back(end - begin == 1 ? std::to_string(numbers[begin])
                                      : fmt::format("{}-{}", numbers[begin], numbers[end - 1]));
  }
  return fmt::format("{}", fmt::join(ranges, ", "));
}

std::string with_separators(int64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string human_time(double seconds) {
  const int64_t total = std::max<int64_t>(0, std::llround(seconds));
  if (total >= 3600) return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
  return fmt::format("{:02}:{:02}", total / 60, total % 60);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace te
