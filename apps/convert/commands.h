// The subcommands of te-convert, a file of apps/convert/ each, and what they share: interruption and progress.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>

namespace te::convert {

void add_import(CLI::App& app);
void add_export(CLI::App& app);
void add_reshard(CLI::App& app);
void add_inspect(CLI::App& app);
/// Sets the program's exit code to 1 where the two differ.
void add_diff(CLI::App& app, int& exit_code);

/// Ctrl-C and SIGTERM make check_interrupted() throw Interrupted, so that destructors remove unfinished files. A command
/// calls it between pieces of its work.
void catch_interrupts();
struct Interrupted {};
bool interrupted();
void check_interrupted();

/// Checks for interruption, and shows bytes and speed on standard error, twice a second, if that is a terminal.
class Progress {
 public:
  explicit Progress(int64_t total_bytes) : total_(total_bytes) {}
  ~Progress();  ///< clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(int64_t bytes);
  double seconds() const;

 private:
  int64_t total_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
};

}  // namespace te::convert
