#include "train/fp8_health.h"
#include "core/json.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace te::train {

namespace {

// Fractions are weighted by their number of values: each rank has counted only its shard of a sharded weight.
Fp8Health merged_operand(const std::vector<Fp8Health>& holders) {
  Fp8Health merged = holders.front();
  merged.saturated = merged.flushed = merged.values = 0;
  merged.requantized.reset();
  double num_requantized = 0;
  for (const Fp8Health& h : holders) {
    // Without a history, ranks have scales of their own microbatches: the scale of the largest one is shown.
    if (h.amax > merged.amax || std::isnan(merged.amax)) merged.amax = h.amax, merged.scale = h.scale;
    if (h.requantized)
      merged.requantized = merged.requantized.value_or(0) + *h.requantized, ++num_requantized;
    if (h.values == 0) continue;  // no fractions
    merged.saturated += h.values * h.saturated;
    merged.flushed += h.values * h.flushed;
    merged.values += h.values;
  }
  merged.saturated /= merged.values;  // NaN if no rank has counted values
  merged.flushed /= merged.values;
  if (merged.requantized) *merged.requantized /= num_requantized;
  return merged;
}

}  // namespace

std::vector<Fp8Health> merge_fp8_health(parallel::World& world, const std::vector<Fp8Health>& own) {
  if (world.size() == 1) return own;
  nlohmann::json text = nlohmann::json::array();
  for (const Fp8Health& h : own) {
    // As bits, since JSON has neither infinity nor NaN.
    text.push_back({h.name, h.layer, static_cast<int>(h.role), static_cast<int>(h.format),
                    std::bit_cast<uint64_t>(h.amax), std::bit_cast<uint64_t>(h.scale),
                    std::bit_cast<uint64_t>(h.saturated), std::bit_cast<uint64_t>(h.flushed),
                    h.requantized.value_or(-1), h.values});
  }
  std::vector<std::vector<Fp8Health>> operands;  // each as reported by its ranks
  std::map<std::pair<std::string, int>, size_t> index;
  for (const std::string& rank : world.gather_strings(text.dump())) {
    for (const nlohmann::json& item : parse_json(rank)) {
      Fp8Health h;
      h.name = item[0].get<std::string>();
      h.layer = item[1].get<int>();
      h.role = static_cast<fp8::OperandRole>(item[2].get<int>());
      h.format = static_cast<DType>(item[3].get<int>());
      h.amax = std::bit_cast<double>(item[4].get<uint64_t>());
      h.scale = std::bit_cast<double>(item[5].get<uint64_t>());
      h.saturated = std::bit_cast<double>(item[6].get<uint64_t>());
      h.flushed = std::bit_cast<double>(item[7].get<uint64_t>());
      if (const double requantized = item[8].get<double>(); requantized >= 0) h.requantized = requantized;
      h.values = item[9].get<double>();
      const auto [found, added] = index.try_emplace({h.name, static_cast<int>(h.role)}, operands.size());
      if (added) operands.emplace_back();
      operands[found->second].push_back(h);
    }
  }
  std::vector<Fp8Health> merged;
  for (const std::vector<Fp8Health>& holders : operands) merged.push_back(merged_operand(holders));
  return merged;
}

}  // namespace te::train
