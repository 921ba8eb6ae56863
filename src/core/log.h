// The program's log: lines in one format. A line begins with the time. Warnings and errors are marked as
// such, on a terminal also by color. Only log.cpp includes spdlog, whose calls would take a second to compile in each
// source.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace te {

enum class LogLevel : uint8_t { info, warning, error };
/// Standard output, or standard error for programs whose output is a result.
enum class LogStream : uint8_t { output, error };

/// The level of "info", "warning" or "error".
LogLevel log_level(std::string_view name);

/// Sets format and least level of the log for the current terminal. With at least kWideColumns columns each line has
/// the date and the time; otherwise only the time, and the heading of a console table has the date.
void init_log(LogLevel level = LogLevel::info, LogStream stream = LogStream::output);

/// Prints a message of one or more lines.
void log_message(LogLevel level, std::string_view message);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

inline constexpr int kWideColumns = 100;

/// Prints lines unchanged, without the time, if messages of level `info` are shown.
void print_plain(std::string_view lines);

/// Width in columns of the prefix of each line: "[15:41:23] ", or with the date.
int log_prefix_columns(int columns);
/// Heading of the prefix's column in a table, padded to its width: the date if lines have only the time, else "time".
std::string log_prefix_heading(int columns);

}  // namespace te
