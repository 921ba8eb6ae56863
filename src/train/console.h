// A run on the console: a table with a line per step, and lines of their own for what is seldom (validation, FP8 values
// out of range, skipped steps). The table has as many columns as the terminal is wide, the less important ones go
// first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/log.h"
#include "train/metrics.h"

namespace te::train {

/// A column of the table.
struct Cell {
  const char* heading;  ///< with its unit
  int width;
  int rank;  ///< of importance: 0 is always shown, the highest goes first
  std::string text;
};

/// The cells of a step, all that there are.
std::vector<Cell> step_cells(const StepMetrics& metrics, const MetricsOptions& options,
                             const std::vector<Fp8Health>& fp8, double eta_seconds);
/// Those that fit into `columns`; blanks between two cells in `gap`.
std::vector<Cell> fitting(std::vector<Cell> cells, int columns, int& gap);
std::string joined(const std::vector<Cell>& cells, int gap, bool headings);

class Console {
 public:
  explicit Console(const MetricsOptions& options) : options_(options) {}
  void step(const StepMetrics& metrics, const std::vector<Fp8Health>& fp8, double eta_seconds);

  static constexpr int kHeadingEvery = 25;  ///< lines of steps
  /// Share of an operand's values beyond the largest FP8 number from which on a line warns. Delayed scaling saturates
  /// a few values now and then: one of a thousand is far more than that.
  static constexpr double kWarnSaturated = 1e-3;

 private:
  void warn_of_saturation(int64_t step, const std::vector<Fp8Health>& fp8);

  MetricsOptions options_;
  int lines_ = 0;          ///< since the last heading
  std::string headings_;   ///< as last shown
  double warned_of_ = 0;   ///< share of the last warning
  int64_t warned_at_ = 0;  ///< its record
  int64_t records_ = 0;    ///< with FP8 health
};

}  // namespace te::train
