#include "common/progress.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/strings.h"

namespace te::apps {
namespace {

std::string bar(double share) {
  constexpr int kWidth = 20;
  const auto full = static_cast<size_t>(std::lround(share * kWidth));
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "]";
}

}  // namespace

bool Progress::is_terminal() {
  return ::isatty(STDERR_FILENO) == 1;
}

bool Progress::due() {
  const double now = now_seconds();
  if (now - last_ < (terminal_ ? 0.5 : 10.0)) return false;
  last_ = now;
  return true;
}

void Progress::print(int64_t bytes, const std::string& detail) {
  const double elapsed = seconds(), rate = static_cast<double>(bytes) / elapsed;
  std::string line =
      fmt::format("{}{:.1f} MB {}, {:.1f} MB/s", detail, static_cast<double>(bytes) / 1e6, done_, rate / 1e6);
  if (total_ > 0 && bytes > 0) {
    const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_));
    line = fmt::format("{} {:3.0f}% {}, ETA {}", bar(share), 100.0 * share, line,
                       human_time(static_cast<double>(std::max<int64_t>(0, total_ - bytes)) / rate));
  }
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "\n");
  shown_ = true;
}

Progress::~Progress() {
  if (terminal_ && shown_) fmt::print(stderr, "\n");
}

}  // namespace te::apps
