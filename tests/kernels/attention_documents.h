// Packed samples for the tests of attention on both backends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace te::kernels {

/// Documents of lengths 1, 70, 3, 64, 2, ... one after another, truncated at the end of a sample.
inline std::vector<int32_t> some_documents(int64_t batch, int64_t seq) {
  constexpr int64_t kLengths[] = {1, 70, 3, 64, 2, 129, 61};
  std::vector<int32_t> start(static_cast<size_t>(batch * seq));
  size_t length = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t begin = 0; begin < seq; begin += kLengths[length++ % std::size(kLengths)])
      std::fill(start.begin() + b * seq + begin, start.begin() + (b + 1) * seq, static_cast<int32_t>(begin));
  return start;
}

}  // namespace te::kernels
