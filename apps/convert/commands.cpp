#include "convert/commands.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace te::convert {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second Ctrl-C ends at once
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return stop_requested != 0;
}

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

void Progress::operator()(int64_t bytes) {
  check_interrupted();
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - last_).count() < 0.5 || ::isatty(STDERR_FILENO) != 1) return;
  last_ = now;
  shown_ = true;
  fmt::print(stderr, "\r{:3.0f} %, {:.1f} GB, {:.0f} MB/s\033[K",
             100.0 * static_cast<double>(bytes) / static_cast<double>(total_),
             static_cast<double>(bytes) / 1e9, static_cast<double>(bytes) / 1e6 / seconds());
}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace te::convert
