// Which dataset does sample n come from? Greedy blending, as in Megatron: each next sample goes to the
// dataset with the largest w_i * max(n, 1) - count_i (the lowest index wins a tie), so after n samples every
// count is within one or so of w_i * n. A dataset with a limit leaves the blend when it is used up.
//
// The rule is a recurrence, yet access is by index: the counts are kept for every 1024th sample, and a query
// replays the rule from the nearest one. Thread safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace te::data {

class Blend {
 public:
  static constexpr int64_t kEndless = INT64_MAX;

  struct Item {
    int32_t dataset;
    int64_t sample;  ///< how many samples this dataset gave before
  };

  /// Weights need not sum to 1; each must be positive and finite. limits[i]: samples that dataset i has, or
  /// kEndless.
  Blend(std::vector<double> weights, std::vector<int64_t> limits);

  int64_t num_samples() const { return num_samples_; }  ///< sum of the limits, or kEndless

  /// Items of samples [first, first + count), all below num_samples().
  std::vector<Item> items(int64_t first, int64_t count) const;

 private:
  static constexpr int64_t kStride = 1024;
  int32_t next(int64_t n, const int64_t* counts) const;

  std::vector<double> weights_;
  std::vector<int64_t> limits_;
  int64_t num_samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t> counts_;  // [block, dataset] before sample block * kStride
};

}  // namespace te::data
