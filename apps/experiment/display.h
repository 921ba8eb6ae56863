// The state of an experiment on the screen: on a terminal a table, redrawn every second; elsewhere a line for every
// event and, once a minute, one for every run that is running.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "experiment/run_state.h"

namespace te::experiment {

/// State of a run that has finished and whose evaluation failed.
inline constexpr const char* kNotEvaluated = "evaluation failed";

/// One run's line.
struct Row {
  std::string name;
  std::string state;  ///< where it runs, or its stage, or kNotEvaluated
  bool running = false;
  int64_t steps = 0;  ///< of the whole run
  RunProgress progress;
  std::optional<double> eta_seconds;
};

class Display {
 public:
  explicit Display(std::string title);
  /// One line that stays.
  void event(const std::string& text);
  /// Draws what is due; `eta_seconds`: until all runs are done.
  void update(const std::vector<Row>& rows, std::optional<double> eta_seconds);
  /// The whole table, to stay.
  void finish(const std::vector<Row>& rows);

 private:
  void clear();
  std::string headline(const std::vector<Row>& rows, std::optional<double> eta_seconds) const;

  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool terminal_;
  size_t drawn_ = 0;  ///< lines of the table on the terminal
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

/// The lines of a table: a head and a line a run.
std::vector<std::string> table_lines(const std::vector<Row>& rows);
/// "1:02:03" or "04:05".
std::string clock_text(double seconds);

}  // namespace te::experiment
