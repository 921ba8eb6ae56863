// Searches the layouts of a job for the fastest ones: every valid division into tensor-, context-, data- and
// pipeline-parallel ranks, and for each the schedule, microbatch size, recompute setting and sharding that are fastest
// within the GPUs' memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "parallel/process_grid.h"
#include "planner/step_time.h"

namespace te::planner {

/// A config with a layout, and its prediction.
struct Layout {
  config::Config config;
  parallel::ProcessGrid grid;
  StepTime time;
  double tokens_per_gpu = 0;  ///< per second
  int64_t memory_bytes = 0;   ///< of the rank with the largest memory plan
  std::string settings;       ///< "--set parallel.tensor=4 ...": changes to the given config; may be empty
};

struct SearchResult {
  std::vector<Layout> layouts;       ///< fastest first, one for each division into ranks
  int64_t legal = 0;                 ///< combinations that the config's rules accept
  int64_t too_large = 0;             ///< of these, those that do not fit
  int64_t capacity_bytes = 0;        ///< memory of a GPU that a plan may use
  std::optional<Layout> configured;  ///< the given config; empty if the rules refuse it
  std::string configured_refusal;    ///< the reason, if refused
  /// Its rank among `layouts`: 1 + the number of faster ones.
  int64_t configured_rank() const;
  bool configured_fits() const { return configured && configured->memory_bytes <= capacity_bytes; }
};

/// Bytes of the largest memory plan among the job's ranks (train::StepRunner, and what else a run plans).
using PlannedBytes = std::function<int64_t(const config::Config&, const parallel::ProcessGrid&)>;

/// UserError, with the nearest miss, when no layout is valid or none fits, and for FP32 and FP16 models, whose times
/// are not modeled.
SearchResult search(const config::Config& config, const Cluster& cluster, const PlannedBytes& planned_bytes);

/// The tables that te-train prints: the best `rows` layouts, and the config's own layout.
std::string report(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                   int rows);
/// The same as JSON.
std::string report_json(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                        int rows);

}  // namespace te::planner
