// The program's log: spdlog on stdout with one format. A line begins with the time. Warnings and errors are marked as
// such, on a terminal also by color.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace te {

/// Sets format and level of the default logger for the current terminal. With at least kWideColumns columns each line
/// has the date and the time; otherwise only the time, and the heading of a console table has the date.
void init_log(spdlog::level::level_enum level = spdlog::level::info);

inline constexpr int kWideColumns = 100;

/// Prints lines unchanged, without the time, if messages of level `info` are shown.
void print_plain(std::string_view lines);

/// Width in columns of the prefix of each line: "[15:41:23] ", or with the date.
int log_prefix_columns(int columns);
/// Heading of the prefix's column in a table, padded to its width: the date if lines have only the time, else "time".
std::string log_prefix_heading(int columns);

}  // namespace te
