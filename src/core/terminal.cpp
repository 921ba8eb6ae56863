#include "core/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace te {
namespace {

constexpr int kUnknownColumns = 120;

/// File descriptor that is closed on destruction if it is owned.
struct Output {
  int file = STDOUT_FILENO;
  bool own = false;
  ~Output() {
    if (own && file >= 0) ::close(file);
  }
};

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// Standard output of the parent process, which is the launcher unless there is a wrapper script or a remote host's
// daemon between them; these have no terminal.
Output launchers_output() {
  const std::string path = "/proc/" + std::to_string(::getppid()) + "/fd/1";
  std::error_code error;
  const std::string target = std::filesystem::read_symlink(path, error).string();
  if (error || (!target.starts_with("/dev/pts/") && !target.starts_with("/dev/tty"))) return {-1, false};
  return {::open(path.c_str(), O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC), true};
}

}  // namespace

Terminal console_terminal() {
  Terminal terminal;
  const bool launched = is_set("OMPI_COMM_WORLD_SIZE") && ::isatty(STDOUT_FILENO) == 1;
  const Output output = launched ? launchers_output() : Output{};
  terminal.is_terminal = output.file >= 0 && ::isatty(output.file) == 1;
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || std::string_view(kind) == "dumb";
  terminal.color = terminal.is_terminal && !is_set("NO_COLOR") && !dumb;
  struct winsize window = {};
  if (terminal.is_terminal && ::ioctl(output.file, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    terminal.columns = window.ws_col;
  } else {
    const char* columns = std::getenv("COLUMNS");
    terminal.columns = columns != nullptr ? std::atoi(columns) : 0;
  }
  if (terminal.columns < 1) terminal.columns = kUnknownColumns;
  return terminal;
}

std::string wrapped(std::string_view text, int columns, int indent) {
  const auto width = static_cast<size_t>(std::max(columns, 1));
  std::string all, line;
  const auto blanks = static_cast<size_t>(indent);
  bool empty = true;  // the line has no words yet
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (!empty && line.size() + 1 + word.size() > width) {
      all += line + "\n";
      line = std::string(blanks, ' ');
      empty = true;
      if (word.empty()) continue;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return all + line + "\n";
}

std::string wrapped_lines(std::string_view text, int columns) {
  std::string all;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const size_t blanks = std::min(line.find_first_not_of(' '), line.size());
    all += wrapped(line, columns, static_cast<int>(blanks) + 4);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

}  // namespace te
