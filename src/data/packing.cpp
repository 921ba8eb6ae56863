#include "data/packing.h"

#include <map>

#include "core/error.h"

namespace te::data {

Packing pack_best_fit(std::span<const int32_t> lengths, int64_t capacity) {
  std::map<int64_t, std::vector<int64_t>> open;  // free capacity -> bins, newest last; no entry is empty
  std::vector<int64_t> bin_of(lengths.size());
  int64_t bins = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    TE_CHECK(lengths[i] >= 1 && lengths[i] <= capacity,
             "packing: item {} has length {}, but the capacity is {}", i, lengths[i], capacity);
    int64_t free = capacity, bin = bins;
    if (const auto best = open.lower_bound(lengths[i]); best != open.end()) {
      free = best->first;
      bin = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    } else {
      ++bins;
    }
    bin_of[i] = bin;
    if (free > lengths[i]) open[free - lengths[i]].push_back(bin);
  }
  Packing packing;
  packing.begins.assign(static_cast<size_t>(bins + 1), 0);
  for (const int64_t bin : bin_of) ++packing.begins[static_cast<size_t>(bin + 1)];
  for (size_t bin = 0; bin < static_cast<size_t>(bins); ++bin) packing.begins[bin + 1] += packing.begins[bin];
  packing.items.resize(lengths.size());
  std::vector<int64_t> next(packing.begins.begin(), packing.begins.end() - 1);
  for (size_t i = 0; i < lengths.size(); ++i) {
    packing.items[static_cast<size_t>(next[static_cast<size_t>(bin_of[i])]++)] = static_cast<int64_t>(i);
  }
  return packing;
}

}  // namespace te::data
