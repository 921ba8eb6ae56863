// Small operations on text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace te {

/// The parts between separators; one empty part for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator);

/// The text without `blanks` at its ends.
std::string_view trimmed(std::string_view text, std::string_view blanks = " \t\r");

/// Whether the text is a name of letters, digits, '_', '-' and '.', which needs no quotes as a column of loss.csv.
bool is_plain_name(std::string_view text);

/// Ascending numbers for a message: "0-2, 5, 7-8".
std::string number_ranges(std::span<const int> numbers);

/// "1,234,567".
std::string with_separators(int64_t number);

/// "1:02:03" or "04:05".
std::string human_time(double seconds);

/// The name of this host; "unknown" if the system does not say it.
std::string host_name();

}  // namespace te
