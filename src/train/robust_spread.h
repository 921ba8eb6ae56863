// Center and spread of numbers of which a few may be far off: a median is not moved by them, a mean is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace te::train {

/// The mean of the middle two where their number is even; 0 of none.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// The median absolute deviation from `center`, times 1.4826: of normal numbers that is their standard deviation.
inline double robust_deviation(std::vector<double> values, double center) {
  for (double& value : values) value = std::abs(value - center);
  return 1.4826 * median_of(std::move(values));
}

}  // namespace te::train
