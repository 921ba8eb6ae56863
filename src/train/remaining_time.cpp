#include "train/remaining_time.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "core/strings.h"

namespace te::train {

void RemainingTime::add(Recent& recent, double seconds) {
  recent.push_back(seconds);
  if (recent.size() > kWindow) recent.pop_front();
}

// The mean without the upper and lower eighth: outliers (a first step with autotuning, a wait for the disk) are
// ignored, and steps of different length count with their mean.
double RemainingTime::typical(const Recent& recent) {
  if (recent.empty()) return 0;
  std::vector<double> sorted(recent.begin(), recent.end());
  std::ranges::sort(sorted);
  const size_t out = (sorted.size() + 5) / 8;  // with three values, one at each end
  const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(out),
             end = sorted.end() - (begin - sorted.begin());
  return begin < end ? std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin) : sorted.front();
}

// The last step always validates and saves, whatever the interval.
int64_t RemainingTime::times_after(int64_t step, int64_t every) const {
  if (every == 0 || step >= intervals_.train_steps) return 0;
  const int64_t last = intervals_.train_steps;
  return last / every - step / every + (last % every != 0 ? 1 : 0);
}

double RemainingTime::after(int64_t step) const {
  return static_cast<double>(intervals_.train_steps - step) * typical(steps_) +
         static_cast<double>(times_after(step, intervals_.eval_interval)) * typical(validations_) +
         static_cast<double>(times_after(step, intervals_.task_interval)) * typical(tasks_) +
         static_cast<double>(times_after(step, intervals_.save_every)) * typical(saves_);
}

std::string time_left(double seconds) {
  const auto hours = static_cast<int64_t>(std::llround(seconds / 3600));
  return hours >= 48 ? fmt::format("{}d {:02}h", hours / 24, hours % 24) : human_time(seconds);
}

}  // namespace te::train
