#include "train/loss_spikes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "train/robust_spread.h"

namespace te::train {

double LossSpikes::median() const {
  return median_of({accepted_.begin(), accepted_.end()});
}

double LossSpikes::limit() const {
  if (accepted_.size() < kFewest) return unknown_limit_;
  const double center = median();
  // A loss that hardly moves has a spread of one percent all the same.
  const double spread =
      std::max(robust_deviation({accepted_.begin(), accepted_.end()}, center), 0.01 * std::abs(center));
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
