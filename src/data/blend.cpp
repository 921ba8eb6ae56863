// Implements the greedy recurrence and its replay from stored counts.
#include "data/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace te::data {

Blend::Blend(std::vector<double> weights, std::vector<int64_t> limits)
    : weights_(std::move(weights)), limits_(std::move(limits)) {
  TE_CHECK(!weights_.empty() && weights_.size() == limits_.size(), "blend: {} weights, {} limits",
           weights_.size(), limits_.size());
  double total = 0.0;
  for (double weight : weights_) {
    TE_CHECK(weight > 0.0 && std::isfinite(weight), "blend: weight {} must be positive and finite", weight);
    total += weight;
  }
  TE_CHECK(std::isfinite(total), "blend: the sum of the weights must be finite");
  for (double& weight : weights_) weight /= total;
  for (int64_t limit : limits_)
    num_samples_ = limit > kEndless - num_samples_ ? kEndless : num_samples_ + limit;
  counts_.assign(weights_.size(), 0);
}

int32_t Blend::next(int64_t n, const int64_t* counts) const {
  int32_t best = -1;
  double best_deficit = 0.0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (counts[i] >= limits_[i]) continue;
    const double deficit =
        weights_[i] * static_cast<double>(std::max<int64_t>(n, 1)) - static_cast<double>(counts[i]);
    if (best < 0 || deficit > best_deficit) {
      best = static_cast<int32_t>(i);
      best_deficit = deficit;
    }
  }
  return best;
}

std::vector<Blend::Item> Blend::items(int64_t first, int64_t count) const {
  TE_CHECK(first >= 0 && count >= 0 && first <= num_samples_ && count <= num_samples_ - first,
           "blend: samples [{}, {} + {}) of {}", first, first, count, num_samples_);
  std::vector<Item> result;
  result.reserve(static_cast<size_t>(count));
  const size_t width = weights_.size();
  if (width == 1) {
    for (int64_t n = first; n < first + count; ++n) result.push_back({0, n});
    return result;
  }
  const int64_t block = first / kStride;
  std::vector<int64_t> counts;
  {
    const std::lock_guard lock(mutex_);
    int64_t known = static_cast<int64_t>(counts_.size() / width) - 1;
    const int64_t start = std::min(known, block);
    counts.assign(counts_.begin() + start * static_cast<int64_t>(width),
                  counts_.begin() + (start + 1) * static_cast<int64_t>(width));
    for (; known < block; ++known) {
      for (int64_t n = known * kStride; n < (known + 1) * kStride; ++n) ++counts[next(n, counts.data())];
      counts_.insert(counts_.end(), counts.begin(), counts.end());
    }
  }
  for (int64_t n = block * kStride; n < first + count; ++n) {
    const int32_t dataset = next(n, counts.data());
    if (n >= first) result.push_back({dataset, counts[dataset]});
    ++counts[dataset];
  }
  return result;
}

}  // namespace te::data
