// A run for TensorBoard: the records of metrics.jsonl, whatever they hold, and the config.
//
//   a number KEY                train/KEY; those of speed perf/KEY; valid_KEY becomes valid/KEY
//   an object KEY of numbers    KEY/NAME, deeper ones KEY/NAME/NAME
//   a text, a list of others    text under train/KEY or KEY
//   fp8, a list of operands     fp8/QUANTITY/ROLE: a histogram over all operands of a role; of amax and scale the
//                               logarithm to base 2. And the largest shares: fp8/saturated_max, fp8/flushed_max
//
// And those of fp8_statistics.jsonl, as histograms over all operands of a role, of all forms:
//
//   fp8_statistics/QUANTITY/ROLE          of the run's own casts: sqnr_db, kurtosis, dynamic_range, flushed
//   fp8_statistics/RECIPE/QUANTITY/ROLE   of others that might have been: sqnr_db, flushed
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/event_file.h"

namespace te::train {

class TensorBoard {
 public:
  /// A new event file in `directory` for the steps from `first_step` on, with the config (YAML) as text.
  TensorBoard(const std::filesystem::path& directory, int64_t first_step, const std::string& config);

  /// A record of metrics.jsonl: an object with `step`. Null stands for a number that is not finite.
  void add(const nlohmann::json& record);
  /// A record of fp8_statistics.jsonl.
  void add_statistics(const nlohmann::json& record);
  /// The run went back: earlier events of this step and later ones are void.
  void start_at(int64_t step) { file_.start_at(step); }

 private:
  EventFile file_;
};

}  // namespace te::train
