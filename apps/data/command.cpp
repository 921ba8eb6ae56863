#include "data/command.h"

#include <unistd.h>

#include <cmath>
#include <csignal>

#include "core/error.h"

namespace te::data {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

std::string bar(double share) {
  constexpr int kWidth = 20;
  const auto full = static_cast<size_t>(std::lround(share * kWidth));
  return "[" + std::string(full, '#') + std::string(kWidth - full, '.') + "]";
}

std::string clock(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = request_stop;                  // no SA_RESTART: a read that waits for a pipe ends too
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

bool Progress::is_terminal() {
  return ::isatty(STDERR_FILENO) == 1;
}

bool Progress::due() {
  const auto now = std::chrono::steady_clock::now();
  if (std::chrono::duration<double>(now - last_).count() < (terminal_ ? 0.5 : 10.0)) return false;
  last_ = now;
  return true;
}

void Progress::print(int64_t bytes, const std::string& detail) {
  const double elapsed = seconds(), rate = static_cast<double>(bytes) / elapsed;
  std::string line =
      fmt::format("{}, {:.1f} MB read, {:.1f} MB/s", detail, static_cast<double>(bytes) / 1e6, rate / 1e6);
  if (total_ > 0 && bytes > 0) {
    const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_));
    line = fmt::format("{} {:3.0f} % {}, ETA {}", bar(share), 100.0 * share, line,
                       clock(static_cast<double>(std::max<int64_t>(0, total_ - bytes)) / rate));
  }
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\033[K" : "\n");
  shown_ = true;
}

Progress::~Progress() {
  if (terminal_ && shown_) fmt::print(stderr, "\n");
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void OutputOptions::add_to(CLI::App* command) {
  command->add_option("--output", output, "Prefix of the dataset: writes PREFIX.bin and PREFIX.idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--valid-fraction", valid_fraction,
                      "Put this share of the documents, evenly spread, into the dataset of --valid-output");
  command->add_option("--valid-output", valid_output, "Prefix of the validation set")->type_name("PREFIX");
}

void OutputOptions::check() const {
  const bool split = valid_fraction != 0.0;
  if (split && !(valid_fraction > 0.0 && valid_fraction < 1.0)) {
    user_error("--valid-fraction: {} must be above 0 and below 1", valid_fraction);
  }
  if (split == valid_output.empty()) user_error("--valid-fraction and --valid-output: give both or neither");
  if (valid_output == output) {
    user_error("--valid-output: is the same as --output; give the validation set its own prefix");
  }
}

bool OutputOptions::is_valid_document(int64_t index) const {
  if (!has_valid()) return false;
  const auto until = [&](int64_t count) {
    return std::floor(static_cast<double>(count) * valid_fraction + 0.5);
  };
  return until(index + 1) > until(index);
}

void OutputOptions::check_counts(int64_t train, int64_t valid, const char* what) const {
  if (!has_valid() || (train > 0 && valid > 0)) return;
  user_error(
      "--valid-fraction: {} of {} {} leaves the {} set empty; split the input into more {}, or change "
      "the fraction",
      valid_fraction, train + valid, what, valid == 0 ? "validation" : "training", what);
}

void print_written(const std::string& prefix, const IndexedDatasetWriter& writer) {
  fmt::print("{}: {} documents, {} tokens, {} bytes as {}\n", prefix, writer.num_documents(),
             writer.num_tokens(), writer.num_tokens() * token_size(writer.token_type()),
             token_type_name(writer.token_type()));
}

}  // namespace te::data
