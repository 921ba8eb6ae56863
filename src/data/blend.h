// Chooses the dataset of each sample by greedy blending, as in Megatron: sample n comes from the dataset i with the
// largest w_i * max(n, 1) - count_i (the lowest index wins a tie), so after n samples every count differs from w_i * n
// by about one at most. A dataset with a limit leaves the blend when it is used up.
//
// The rule is a recurrence, but access is by index: the counts are stored for every 1024th sample, and a query replays
// the rule from the preceding one. Thread safe.
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
    int64_t sample;  ///< index of the sample within the dataset
  };

  /// Weights need not sum to 1; each, and their sum, must be positive and finite. limits[i]: number of samples of
  /// dataset i, or kEndless.
  Blend(std::vector<double> weights, std::vector<int64_t> limits);

  int64_t num_samples() const { return num_samples_; }  ///< sum of the limits, or kEndless

  /// The items of samples [first, first + count), which must be below num_samples().
  std::vector<Item> items(int64_t first, int64_t count) const;

 private:
  static constexpr int64_t kStride = 1024;
  int32_t next(int64_t n, const int64_t* counts) const;

  std::vector<double> weights_;
  std::vector<int64_t> limits_;
  int64_t num_samples_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<int64_t>
      counts_;  // [block, dataset]: samples of the dataset before sample block * kStride
};

}  // namespace te::data
