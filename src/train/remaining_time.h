// Estimates a run's remaining time: the remaining steps at the pace of recent ones, plus validations, task evaluations
// and saves.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace te::train {

struct Intervals {
  int64_t train_steps = 0;
  int64_t eval_interval = 0;  ///< steps between validations; 0: none
  int64_t save_every = 0;     ///< steps between checkpoints; 0: none
  int64_t task_interval = 0;  ///< steps between evaluations on tasks; 0: none
};

class RemainingTime {
 public:
  explicit RemainingTime(const Intervals& intervals) : intervals_(intervals) {}

  // Seconds that the loop has spent. For a save, the time during which training waited.
  void step(double seconds) { add(steps_, seconds); }
  void validation(double seconds) { add(validations_, seconds); }
  void tasks(double seconds) { add(tasks_, seconds); }
  void save(double seconds) { add(saves_, seconds); }

  /// Seconds from the end of `step` to the end of the run.
  double after(int64_t step) const;

  static constexpr size_t kWindow = 64;  ///< entries kept of each kind

 private:
  using Recent = std::deque<double>;
  static void add(Recent& recent, double seconds);
  static double typical(const Recent& recent);
  int64_t times_after(int64_t step, int64_t every) const;

  Intervals intervals_;
  Recent steps_, validations_, tasks_, saves_;
};

/// "04:05", "1:02:03"; from two days on "4d 04h".
std::string time_left(double seconds);

}  // namespace te::train
