#include "train/fp8_health.h"

#include <algorithm>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace te::train {

std::vector<Fp8Health> merge_fp8_health(parallel::World& world, const std::vector<Fp8Health>& own) {
  if (world.size() == 1) return own;
  nlohmann::json text = nlohmann::json::array();
  for (const Fp8Health& h : own) {
    // As bits, since JSON has neither infinity nor NaN.
    text.push_back({h.name, h.layer, static_cast<int>(h.role), static_cast<int>(h.format),
                    std::bit_cast<uint64_t>(h.amax), std::bit_cast<uint64_t>(h.scale), h.saturated, h.flushed,
                    h.recast.value_or(-1)});
  }
  std::vector<Fp8Health> merged;
  std::vector<double> holders;
  std::map<std::pair<std::string, int>, size_t> index;
  for (const std::string& rank : world.gather_strings(text.dump())) {
    for (const nlohmann::json& item : nlohmann::json::parse(rank)) {
      Fp8Health h;
      h.name = item[0].get<std::string>();
      h.layer = item[1].get<int>();
      h.role = static_cast<fp8::OperandRole>(item[2].get<int>());
      h.format = static_cast<DType>(item[3].get<int>());
      h.amax = std::bit_cast<double>(item[4].get<uint64_t>());
      h.scale = std::bit_cast<double>(item[5].get<uint64_t>());
      h.saturated = item[6].get<double>();
      h.flushed = item[7].get<double>();
      if (const double recast = item[8].get<double>(); recast >= 0) h.recast = recast;
      const auto [found, added] = index.try_emplace({h.name, static_cast<int>(h.role)}, merged.size());
      if (added) {
        merged.push_back(h);
        holders.push_back(1);
        continue;
      }
      Fp8Health& sum = merged[found->second];
      sum.amax = std::max(sum.amax, h.amax);
      sum.saturated += h.saturated;
      sum.flushed += h.flushed;
      if (h.recast) sum.recast = sum.recast.value_or(0) + *h.recast;
      holders[found->second] += 1;
    }
  }
  for (size_t i = 0; i < merged.size(); ++i) {
    merged[i].saturated /= holders[i];
    merged[i].flushed /= holders[i];
    if (merged[i].recast) *merged[i].recast /= holders[i];
  }
  return merged;
}

}  // namespace te::train
