// Robust center and spread of numbers with outliers: outliers change the mean, but not the median.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace te::train {

/// The mean of the middle two for an even count; 0 for an empty vector.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// The median absolute deviation from `center`, times 1.4826: the standard deviation for normally distributed numbers.
inline double robust_deviation(std::vector<double> values, double center) {
  for (double& value : values) value = std::abs(value - center);
  return 1.4826 * median_of(std::move(values));
}

}  // namespace te::train
