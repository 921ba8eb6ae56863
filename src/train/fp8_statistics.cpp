#include "train/fp8_statistics.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "core/json.h"
#include "train/json_number.h"

namespace te::train {
namespace {

using nlohmann::json;

using Words = std::array<uint64_t, sizeof(kernels::TensorSums) / sizeof(uint64_t)>;

json to_message(const Fp8Statistics& own) {
  json message = {{"operands", json::array()}, {"swiglu", json::array()}};
  for (const QuantizationStatistics& s : own.operands) {
    message["operands"].push_back({s.operand.linear.layer, static_cast<int>(s.operand.linear.kind),
                                   static_cast<int>(s.operand.role), static_cast<int>(s.operand.format),
                                   s.recipe, s.what_if, s.layouts, std::bit_cast<Words>(s.sums)});
  }
  for (const LayerAlignment& layer : own.swiglu)
    message["swiglu"].push_back({layer.layer, layer.mean, layer.max, layer.channels});
  return message;
}

void add_operand(Fp8Statistics& all, std::map<std::string, size_t>& index, const json& item) {
  QuantizationStatistics s;
  s.operand = {{item[0].get<int>(), static_cast<LinearKind>(item[1].get<int>())},
               static_cast<fp8::OperandRole>(item[2].get<int>()),
               static_cast<DType>(item[3].get<int>())};
  s.recipe = item[4].get<std::string>();
  s.what_if = item[5].get<bool>();
  s.layouts = item[6].get<std::string>();
  s.sums = std::bit_cast<kernels::TensorSums>(item[7].get<Words>());
  const std::string key = fmt::format("{} {} {} {}", s.operand.linear.name(), fp8::role_name(s.operand.role),
                                      s.recipe, s.layouts);
  const auto [found, added] = index.try_emplace(key, all.operands.size());
  if (added) return all.operands.push_back(std::move(s));
  kernels::TensorSums& sums = all.operands[found->second].sums;
  sums = kernels::merged(sums, s.sums);
}

// Data-parallel ranks have the same weights; counting channels twice changes neither mean nor maximum.
void add_alignment(Fp8Statistics& all, const json& item) {
  const LayerAlignment part{item[0].get<int64_t>(), item[1].get<double>(), item[2].get<double>(),
                            item[3].get<int64_t>()};
  const auto found = std::ranges::find(all.swiglu, part.layer, &LayerAlignment::layer);
  if (found == all.swiglu.end()) return all.swiglu.push_back(part);
  const auto a = static_cast<double>(found->channels), b = static_cast<double>(part.channels);
  found->mean = (found->mean * a + part.mean * b) / (a + b);
  found->max = std::max(found->max, part.max);
  found->channels += part.channels;
}

json operand_record(const QuantizationStatistics& s) {
  const auto n = static_cast<double>(s.sums.count - s.sums.nonfinite);
  json record = {{"layer", s.operand.linear.layer},
                 {"linear", s.operand.linear.name()},
                 {"role", fp8::role_name(s.operand.role)},
                 {"recipe", s.recipe},
                 {"values", s.sums.count},
                 {"nonfinite", s.sums.nonfinite},
                 {"amax", number(s.sums.amax)},
                 {"mean", number(s.sums.sum1 / n)},
                 {"rms", number(std::sqrt(s.sums.sum2 / n))},
                 {"kurtosis", number(kernels::kurtosis(s.sums))},
                 {"dynamic_range", number(kernels::dynamic_range(s.sums))}};
  if (s.recipe == "none") return record;
  record["what_if"] = s.what_if;
  record["form"] = s.layouts;
  record["format"] = dtype_name(s.operand.format);
  if (s.sums.highest_scale > 0) {  // emulated recipes store no scales
    record["scale"] = number(s.sums.lowest_scale);
    record["scale_max"] = number(s.sums.highest_scale);
  }
  record["saturated"] = number(kernels::saturated_fraction(s.sums));
  record["flushed"] = number(kernels::underflow_fraction(s.sums));
  record["mse"] = number(s.sums.squared_error / n);
  record["sqnr_db"] = number(kernels::sqnr_db(s.sums));
  return record;
}

/// The run's own quantization with the lowest SQNR; null if nothing is quantized.
const QuantizationStatistics* worst(const Fp8Statistics& statistics) {
  const QuantizationStatistics* result = nullptr;
  for (const QuantizationStatistics& s : statistics.operands) {
    if (s.what_if || s.recipe == "none" || !std::isfinite(kernels::sqnr_db(s.sums))) continue;
    if (result == nullptr || kernels::sqnr_db(s.sums) < kernels::sqnr_db(result->sums)) result = &s;
  }
  return result;
}

}  // namespace

Fp8Statistics merge_fp8_statistics(parallel::World& world, const Fp8Statistics& own) {
  if (world.size() == 1) return own;
  Fp8Statistics all;
  std::map<std::string, size_t> index;
  for (const std::string& rank : world.gather_strings(to_message(own).dump())) {
    const json message = parse_json(rank);
    for (const json& item : message["operands"]) add_operand(all, index, item);
    for (const json& item : message["swiglu"]) add_alignment(all, item);
  }
  return all;
}

json to_json(int64_t step, const Fp8Statistics& statistics) {
  json record = {{"step", step}, {"operands", json::array()}};
  for (const QuantizationStatistics& s : statistics.operands) record["operands"].push_back(operand_record(s));
  for (const LayerAlignment& layer : statistics.swiglu)
    record["swiglu"].push_back({{"layer", layer.layer}, {"mean", layer.mean}, {"max", layer.max}});
  return record;
}

std::vector<std::pair<std::string, double>> summary(const Fp8Statistics& statistics) {
  std::vector<std::pair<std::string, double>> result;
  double saturated = 0, flushed = 0, alignment = 0;
  std::optional<double> fc2;  // the linear layers of experts have no statistics
  for (const QuantizationStatistics& s : statistics.operands) {
    if (s.what_if) continue;
    if (s.operand.linear.kind == LinearKind::fc2 && s.operand.role == fp8::OperandRole::input)
      fc2 = std::max(fc2.value_or(0), static_cast<double>(s.sums.amax));
    if (s.recipe == "none" || s.sums.count == 0) continue;
    saturated = std::max(saturated, kernels::saturated_fraction(s.sums));
    flushed = std::max(flushed, kernels::underflow_fraction(s.sums));
  }
  if (const QuantizationStatistics* operand = worst(statistics)) {
    result.emplace_back("sqnr_db_min", kernels::sqnr_db(operand->sums));
    result.emplace_back("saturated_max", saturated);
    result.emplace_back("flushed_max", flushed);
  }
  if (fc2) result.emplace_back("fc2_input_amax", *fc2);
  for (const LayerAlignment& layer : statistics.swiglu) alignment = std::max(alignment, layer.mean);
  if (!statistics.swiglu.empty()) result.emplace_back("swiglu_alignment", alignment);
  return result;
}

std::string describe(const Fp8Statistics& statistics) {
  std::vector<std::string> parts;
  if (const QuantizationStatistics* operand = worst(statistics)) {
    parts.push_back(fmt::format("lowest SQNR {:.1f} dB ({} {}, {})", kernels::sqnr_db(operand->sums),
                                operand->operand.linear.name(), fp8::role_name(operand->operand.role),
                                operand->recipe));
  }
  for (const auto& [name, value] : summary(statistics))
    if (name == "fc2_input_amax") parts.push_back(fmt::format("largest linear_fc2 input {:.4g}", value));
  return fmt::format("FP8 statistics: {}", fmt::join(parts, ", "));
}

}  // namespace te::train
