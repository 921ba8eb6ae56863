#include "train/loss_spikes.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace te::train {
namespace {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double LossSpikes::median() const {
  return median_of({accepted_.begin(), accepted_.end()});
}

double LossSpikes::limit() const {
  if (accepted_.size() < kFewest) return unknown_limit_;
  const double center = median();
  std::vector<double> deviations;
  for (const double loss : accepted_) deviations.push_back(std::abs(loss - center));
  // 1.4826 makes of the median deviation a standard deviation, of normal numbers. A loss that hardly moves has a spread
  // of one percent all the same.
  const double spread = std::max(1.4826 * median_of(std::move(deviations)), 0.01 * std::abs(center));
  return center + threshold_ * spread;
}

bool LossSpikes::add(double loss) {
  const bool spike = loss > limit();
  since_ = spike ? 0 : since_ + 1;
  if (!spike) {
    row_.clear();
    accepted_.push_back(loss);
    if (accepted_.size() > kWindow) accepted_.pop_front();
    return false;
  }
  ++total_;
  row_.push_back(loss);
  if (row_.size() > kNewLevel) row_.pop_front();
  if (row_.size() == kNewLevel && !lost()) {
    accepted_ = std::move(row_);
    row_.clear();
  }
  return true;
}

bool LossSpikes::lost() const {
  return row_.size() == kNewLevel && !accepted_.empty() &&
         median_of({row_.begin(), row_.end()}) > unknown_limit_;
}

void LossSpikes::forget(int64_t newest) {
  row_.clear();
  while (newest-- > 0 && !accepted_.empty()) accepted_.pop_back();
}

}  // namespace te::train
