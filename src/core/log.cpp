#include "core/log.h"

#include <fmt/chrono.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/printable.h"
#include "core/terminal.h"

namespace te {
namespace {

/// Escapes control characters except newlines: messages quote files of other programs.
std::string printable_lines(std::string_view text) {
  std::string all;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    all += printable(text.substr(0, end)) + "\n";
  return all + printable(text);
}

/// The message with the prefix "warning: " or "error: " and its color, wrapped to the terminal's width.
class Message final : public spdlog::custom_flag_formatter {
 public:
  explicit Message(const Terminal& terminal) : terminal_(terminal) {}
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const bool error = message.level >= spdlog::level::err, problem = message.level >= spdlog::level::warn;
    std::string text = error ? "error: " : problem ? "warning: " : "";
    text += printable_lines({message.payload.data(), message.payload.size()});
    // In a file a message stays on one line so that it can be searched.
    if (terminal_.is_terminal && text.find('\n') == std::string::npos) text = folded(text);
    if (terminal_.color && problem) text = (error ? "\033[31m" : "\033[33m") + text + "\033[0m";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<Message>(terminal_);
  }

 private:
  std::string folded(const std::string& text) const {
    const int prefix = log_prefix_columns(terminal_.columns);
    const std::string blanks(static_cast<size_t>(prefix), ' ');
    std::string lines = wrapped(blanks + text, terminal_.columns, prefix);
    lines.pop_back();
    return lines.substr(blanks.size());
  }

  Terminal terminal_;
};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return level == LogLevel::error     ? spdlog::level::err
         : level == LogLevel::warning ? spdlog::level::warn
                                      : spdlog::level::info;
}

}  // namespace

LogLevel log_level(std::string_view name) {
  if (name == "error") return LogLevel::error;
  return name == "warning" ? LogLevel::warning : LogLevel::info;
}

void init_log(LogLevel level, LogStream stream) {
  const Terminal terminal = console_terminal();
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<Message>('*', terminal);
  formatter->set_pattern(terminal.columns >= kWideColumns ? "[%Y-%m-%d %H:%M:%S] %*" : "[%H:%M:%S] %*");
  spdlog::sink_ptr sink = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  if (stream == LogStream::error) sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("te", std::move(sink));
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog_level(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

void log_message(LogLevel level, std::string_view message) {
  spdlog::log(spdlog_level(level), message);
}

void print_plain(std::string_view lines) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  std::fwrite(lines.data(), 1, lines.size(), stdout);
  std::fflush(stdout);
}

int log_prefix_columns(int columns) {
  return columns >= kWideColumns ? 22 : 11;
}

std::string log_prefix_heading(int columns) {
  if (columns >= kWideColumns) return fmt::format("{:<22}", "time");
  return fmt::format("{:%F} ", local_time());
}

}  // namespace te
