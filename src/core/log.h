// The program's log: spdlog with one format, on stdout. A line begins with the time, warnings and errors say so, and on
// a terminal they have a colour.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace te {

/// Sets format and level of the default logger, for the terminal that is there now. Where there is room (kWideColumns)
/// the time has its date; elsewhere tables of the console name the date in their heading.
void init_log(spdlog::level::level_enum level = spdlog::level::info);

inline constexpr int kWideColumns = 100;

/// Prints lines as they are, without time, where messages of level `info` are shown.
void print_plain(std::string_view lines);

/// The columns of the time in front of each line: "[15:41:23] ", or with the date.
int log_prefix_columns(int columns);
/// What stands there in a table's heading: the date where lines have none, padded.
std::string log_prefix_heading(int columns);

}  // namespace te
