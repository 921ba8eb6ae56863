// TensorBoard output of a run: all records of metrics.jsonl, and the config.
//
//   number KEY                  train/KEY; speed: perf/KEY; valid_KEY becomes valid/KEY
//   object KEY of numbers       KEY/NAME, nested: KEY/NAME/NAME
//   text, or list of texts      text in train/KEY or KEY
//   fp8, a list of operands     fp8/QUANTITY/ROLE: histogram over all operands of a role (amax and scale: log2),
//                               and the largest fractions: fp8/saturated_max, fp8/flushed_max
//
// Records of fp8_statistics.jsonl, as histograms over all operands and layouts of a role:
//
//   fp8_statistics/QUANTITY/ROLE          the run's recipe: sqnr_db, kurtosis, dynamic_range, flushed
//   fp8_statistics/RECIPE/QUANTITY/ROLE   other recipes: sqnr_db, flushed
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/event_file.h"

namespace te::train {

class TensorBoard {
 public:
  /// Creates an event file in `directory` for the steps from `first_step` on, with the config (YAML) as text.
  TensorBoard(const std::filesystem::path& directory, int64_t first_step, const std::string& config);

  /// A record of metrics.jsonl: an object with `step`. Null stands for a non-finite number.
  void add(const nlohmann::json& record);
  /// A record of fp8_statistics.jsonl.
  void add_statistics(const nlohmann::json& record);
  /// After a rollback: earlier events of this step and later ones are void.
  void start_at(int64_t step) { file_.start_at(step); }

 private:
  EventFile file_;
};

}  // namespace te::train
