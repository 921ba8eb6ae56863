// How long a run has still to go: remaining steps at the pace of the recent ones, and the validations, evaluations on
// tasks and saves among them.
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

  // Seconds that the loop has spent. A save's are those for which training waited.
  void step(double seconds) { add(steps_, seconds); }
  void validation(double seconds) { add(validations_, seconds); }
  void tasks(double seconds) { add(tasks_, seconds); }
  void save(double seconds) { add(saves_, seconds); }

  /// Seconds from the end of `step` to the end of the run.
  double after(int64_t step) const;

  static constexpr size_t kWindow = 64;  ///< of each kind; older ones are forgotten

 private:
  using Recent = std::deque<double>;
  static void add(Recent& recent, double seconds);
  static double typical(const Recent& recent);
  int64_t times_after(int64_t step, int64_t every) const;

  Intervals intervals_;
  Recent steps_, validations_, tasks_, saves_;
};

/// "04:05", "1:02:03", from two days on "4d 04h".
std::string time_left(double seconds);

}  // namespace te::train
