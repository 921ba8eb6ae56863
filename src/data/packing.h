// Puts items of given lengths into bins of one capacity, whole: best fit. Private to the data room.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::data {

/// Bins in the order in which they were opened; bin b holds items[begins[b]] to items[begins[b + 1] - 1].
struct Packing {
  std::vector<int64_t> items, begins;
  int64_t num_bins() const { return static_cast<int64_t>(begins.size()) - 1; }
};

/// Takes items 0, 1, ... of these lengths (each 1 to `capacity`) in this order and puts each into the bin with
/// the least room that holds it, the youngest of several, or into a new bin. Deterministic; O(n log capacity).
/// Unlike first-fit-decreasing it keeps short and long items mixed, so a shuffled order stays shuffled.
Packing pack_best_fit(std::span<const int32_t> lengths, int64_t capacity);

}  // namespace te::data
