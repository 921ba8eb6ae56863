#include "experiment/display.h"

#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "core/strings.h"

namespace te::experiment {
namespace {

constexpr size_t kColumns = 7;
using Cells = std::array<std::string, kColumns>;

Cells cells_of(const Row& row) {
  const RunProgress& p = row.progress;
  const auto number = [](double value) {
    return value > 0 ? fmt::format("{:.4f}", value) : std::string("-");
  };
  return {row.name,
          row.state,
          fmt::format("{}/{}", p.step, row.steps),
          number(p.loss),
          number(p.valid_loss),
          row.running && p.tokens_per_s > 0 ? fmt::format("{:.0f}", p.tokens_per_s) : "-",
          row.eta_seconds ? human_time(*row.eta_seconds) : "-"};
}

struct Size {
  size_t rows = 24, columns = 80;
};
Size terminal_size() {
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) return {};
  return {size.ws_row, size.ws_col};
}

std::string time_of_day() {
  return fmt::format("{:%T}", local_time());
}

// At most `count` rows: those that are running first, then the others in their order.
std::vector<Row> rows_to_show(const std::vector<Row>& rows, size_t count) {
  if (rows.size() <= count) return rows;
  std::vector<Row> chosen;
  for (const bool running : {true, false})
    for (const Row& row : rows)
      if (row.running == running && chosen.size() < count) chosen.push_back(row);
  return chosen;
}

/// Prints text. Unlike fmt::print, it ignores failures: runs continue without a reader of the output.
template <class... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stdout);
}

}  // namespace

std::vector<std::string> table_lines(const std::vector<Row>& rows) {
  std::vector<Cells> all = {{"run", "state", "step", "loss", "valid", "tokens/s", "ETA"}};
  for (const Row& row : rows) all.push_back(cells_of(row));
  std::array<size_t, kColumns> widths = {};
  for (const Cells& cells : all)
    for (size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], cells[i].size());
  std::vector<std::string> lines;
  for (const Cells& cells : all) {
    std::string line = fmt::format("{:<{}}  {:<{}}", cells[0], widths[0], cells[1], widths[1]);
    for (size_t i = 2; i < kColumns; ++i) line += fmt::format("  {:>{}}", cells[i], widths[i]);
    lines.push_back(line);
  }
  return lines;
}

Display::Display(std::string title) : title_(std::move(title)), terminal_(::isatty(STDOUT_FILENO) == 1) {}

void Display::clear() {
  if (drawn_ > 0) put("\033[{}F\033[J", drawn_);
  drawn_ = 0;
}

void Display::event(const std::string& text) {
  clear();
  put("[{}] {}\n", time_of_day(), text);
  std::fflush(stdout);
  if (terminal_) last_ = 0;  // redraw the table below the line at the next update
}

std::string Display::headline(const std::vector<Row>& rows, std::optional<double> eta_seconds) const {
  const auto count = [&](const char* state) {
    return std::ranges::count_if(rows, [&](const Row& row) { return row.state == state; });
  };
  const auto running = std::ranges::count_if(rows, [](const Row& row) { return row.running; });
  std::string text =
      fmt::format("{}: {} of {} runs finished, {} running", title_, count("finished"), rows.size(), running);
  for (const char* bad : {"failed", "diverged", kNotEvaluated})
    if (count(bad) > 0) text += fmt::format(", {} {}", count(bad), bad);
  text += fmt::format("; {} so far", human_time(now_seconds() - start_));
  if (eta_seconds) text += fmt::format(", ETA {}", human_time(*eta_seconds));
  return text;
}

void Display::update(const std::vector<Row>& rows, std::optional<double> eta_seconds) {
  const double now = now_seconds();
  if (now - last_ < (terminal_ ? 1.0 : 60.0)) return;
  last_ = now;
  if (!terminal_) {
    put("[{}] {}\n", time_of_day(), headline(rows, eta_seconds));
    for (const Row& row : rows) {
      if (!row.running) continue;
      const Cells c = cells_of(row);
      put("[{}] {} ({}): step {}, loss {}, valid {}, {} tokens/s, ETA {}\n", time_of_day(), c[0], c[1], c[2],
          c[3], c[4], c[5], c[6]);
    }
    std::fflush(stdout);
    return;
  }
  const Size size = terminal_size();
  std::vector<std::string> lines = table_lines(rows_to_show(rows, size.rows > 4 ? size.rows - 4 : 1));
  lines.insert(lines.begin(), headline(rows, eta_seconds));
  clear();
  for (const std::string& line : lines) put("{}\n", line.substr(0, size.columns - 1));
  drawn_ = lines.size();
  std::fflush(stdout);
}

void Display::finish(const std::vector<Row>& rows) {
  clear();
  put("{}\n", headline(rows, std::nullopt));
  for (const std::string& line : table_lines(rows)) put("{}\n", line);
  std::fflush(stdout);
}

}  // namespace te::experiment
