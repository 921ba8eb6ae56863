// Best-fit packing of items into bins of equal capacity, without splitting items. Private to the data library.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace te::data {

/// Bins in the order in which they were opened; bin b contains items[begins[b]] to items[begins[b + 1] - 1].
struct Packing {
  std::vector<int64_t> items, begins;
  int64_t num_bins() const { return static_cast<int64_t>(begins.size()) - 1; }
};

/// Packs items 0, 1, ... with the given lengths (each 1 to `capacity`) in this order. Each item goes into the bin with
/// the least sufficient free capacity (the newest of several), or into a new bin. Deterministic; O(n log capacity).
/// Unlike first-fit-decreasing, it keeps short and long items mixed, so a shuffled order remains shuffled.
Packing pack_best_fit(std::span<const int32_t> lengths, int64_t capacity);

}  // namespace te::data
