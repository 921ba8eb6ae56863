// Shows the state of an experiment: on a terminal as a table that is redrawn every second, else as one line per event
// and, every minute, one line per running run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "experiment/run_state.h"

namespace te::experiment {

/// State of a run that has finished and whose evaluation failed.
inline constexpr const char* kNotEvaluated = "evaluation failed";

/// One run's line.
struct Row {
  std::string name;
  std::string state;  ///< the slot in which it runs, or its stage, or kNotEvaluated
  bool running = false;
  int64_t steps = 0;  ///< of the whole run
  RunProgress progress;
  std::optional<double> eta_seconds;
};

class Display {
 public:
  explicit Display(std::string title);
  /// Prints a permanent line.
  void event(const std::string& text);
  /// Redraws if due; `eta_seconds`: until all runs are done.
  void update(const std::vector<Row>& rows, std::optional<double> eta_seconds);
  /// Prints the complete table permanently.
  void finish(const std::vector<Row>& rows);

 private:
  void clear();
  std::string headline(const std::vector<Row>& rows, std::optional<double> eta_seconds) const;

  std::string title_;
  bool terminal_;
  size_t drawn_ = 0;  ///< lines of the table on the terminal
  double start_ = now_seconds(), last_ = start_;
};

/// The lines of the table: a heading and one line per run.
std::vector<std::string> table_lines(const std::vector<Row>& rows);

}  // namespace te::experiment
