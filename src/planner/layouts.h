// Which layouts a job of so many GPUs can have, and which are the fastest: every legal cut into tensor, context, data
// and pipeline ranks, and for each of these the schedule, micro batch, way to recompute and sharding by which it is
// fastest and fits into the GPUs' memory.
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

/// A config with a layout, and what it is predicted to do.
struct Layout {
  config::Config config;
  parallel::ProcessGrid grid;
  StepTime time;
  double tokens_per_gpu = 0;  ///< per second
  int64_t memory_bytes = 0;   ///< of the rank that needs most, by the memory plan
  std::string
      settings;  ///< "--set parallel.tensor=4 ...": what makes it of the config that was given; "" nothing
};

struct SearchResult {
  std::vector<Layout> layouts;       ///< fastest first, one for each cut into ranks
  int64_t legal = 0;                 ///< of all combinations that the config's rules accept
  int64_t too_large = 0;             ///< of these, how many do not fit
  int64_t capacity_bytes = 0;        ///< of a GPU, for a plan
  std::optional<Layout> configured;  ///< the config as it is; absent where its rules refuse that
  std::string configured_refusal;    ///< then why
  /// Its place among `layouts`: 1 + those that are faster.
  int64_t configured_rank() const;
  bool configured_fits() const { return configured && configured->memory_bytes <= capacity_bytes; }
};

/// Bytes of the largest plan of a rank of the job (train::StepRunner, and what else a run plans).
using PlannedBytes = std::function<int64_t(const config::Config&, const parallel::ProcessGrid&)>;

/// UserError, with the nearest miss, when no layout is legal or none fits, and for FP32 and FP16 models, of which no
/// times have been measured.
SearchResult search(const config::Config& config, const Cluster& cluster, const PlannedBytes& planned_bytes);

/// The tables that te-train prints: the best `rows` layouts, and the config's own.
std::string report(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                   int rows);
/// The same for programs.
std::string report_json(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                        int rows);

}  // namespace te::planner
