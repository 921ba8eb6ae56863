// Console output of a run: a table with one line per step, and separate lines for rare events (validation, FP8
// saturation, skipped steps). Columns that do not fit the terminal's width are left out, the least important first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/log.h"
#include "train/metrics.h"

namespace te::train {

/// A cell of the table, with its column's heading.
struct Cell {
  const char* heading;  ///< with the unit
  int width;
  int rank;  ///< 0 is always shown; the highest is left out first
  std::string text;
};

/// All cells of a step.
std::vector<Cell> step_cells(const StepMetrics& metrics, const MetricsOptions& options,
                             const std::vector<Fp8Health>& fp8, double eta_seconds);
/// The cells that fit into `columns`; sets `gap` to the number of blanks between two cells.
std::vector<Cell> fitting(std::vector<Cell> cells, int columns, int& gap);
std::string joined(const std::vector<Cell>& cells, int gap, bool headings);

class Console {
 public:
  explicit Console(const MetricsOptions& options) : options_(options) {}
  void step(const StepMetrics& metrics, const std::vector<Fp8Health>& fp8, double eta_seconds);

  static constexpr int kHeadingEvery = 25;  ///< steps between two headings
  /// Fraction of an operand's values beyond the largest FP8 number from which a warning is printed. Delayed scaling
  /// saturates a few values now and then; 0.1% is well above that.
  static constexpr double kWarnSaturated = 1e-3;

 private:
  void warn_of_saturation(int64_t step, const std::vector<Fp8Health>& fp8);

  MetricsOptions options_;
  int lines_ = 0;          ///< since the last heading
  std::string headings_;   ///< last printed
  double warned_of_ = 0;   ///< fraction in the last warning
  int64_t warned_at_ = 0;  ///< record of the last warning
  int64_t records_ = 0;    ///< records with FP8 health so far
};

}  // namespace te::train
