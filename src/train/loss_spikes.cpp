#include "train/loss_spikes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "train/robust_spread.h"

namespace te::train {
namespace {

constexpr double kSpikeThreshold = 10.0;  ///< robust standard deviations above the median

}  // namespace

// A uniform predictor has the loss log(vocab_size).
LossSpikes::LossSpikes(const config::Config& config, checkpoint::SpikeHistory& history)
    : threshold_(kSpikeThreshold),
      unknown_limit_(2 * std::log(static_cast<double>(config.model.vocab_size))),
      skips_(config.training.loss_spikes == config::LossSpikes::skip),
      history_(history) {}

double LossSpikes::median() const {
  return median_of(history_.accepted);
}

double LossSpikes::limit() const {
  if (history_.accepted.size() < kMinAccepted) return unknown_limit_;
  const double center = median();
  // The spread is at least one percent, for losses that hardly change.
  const double spread = std::max(robust_deviation(history_.accepted, center), 0.01 * std::abs(center));
  return center + threshold_ * spread;
}

double LossSpikes::skip_limit() const {
  return skips_ ? limit() : std::numeric_limits<double>::infinity();
}

bool LossSpikes::add(double loss) {
  std::vector<double>&accepted = history_.accepted, &row = history_.row;
  const bool spike = loss > limit();
  history_.since = spike ? 0 : history_.since + 1;
  if (!spike) {
    row.clear();
    accepted.push_back(loss);
    if (accepted.size() > kWindow) accepted.erase(accepted.begin());
    return false;
  }
  ++history_.total;
  row.push_back(loss);
  if (row.size() > kNewLevel) row.erase(row.begin());
  if (row.size() == kNewLevel && !has_diverged()) accepted = std::exchange(row, {});
  return true;
}

bool LossSpikes::has_diverged() const {
  return history_.row.size() == kNewLevel && !history_.accepted.empty() &&
         median_of(history_.row) > unknown_limit_;
}

void LossSpikes::rollback(const checkpoint::SpikeHistory& undone) {
  history_.total = undone.total;
  history_.since = std::min(history_.since, undone.since);
}

std::string diverged_steps(const checkpoint::Faults& faults, const LossSpikes& spikes) {
  if (spikes.consecutive() >= LossSpikes::kDiverged)
    return fmt::format("the last {} steps had a loss spike", spikes.consecutive());
  if (faults.consecutive_skipped >= LossSpikes::kDiverged)
    return fmt::format("the last {} steps were not finite", faults.consecutive_skipped);
  return "";
}

}  // namespace te::train
