// Statistics of FP8 quantization of every operand during training (logging.fp8_statistics_every): merges the sums of
// all ranks, writes fp8_statistics.jsonl, and selects what metrics.jsonl and TensorBoard show. docs/how-to/debug-fp8.md
// has the format.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "parallel/world.h"
#include "train/quantization_observer.h"
#include "train/swiglu_alignment.h"

namespace te::train {

struct Fp8Statistics {
  std::vector<QuantizationStatistics> operands;
  std::vector<LayerAlignment> swiglu;  ///< empty without SwiGLU
};

/// Merges the statistics of the whole model, in the order of the ranks' stages: shards of one tensor and microbatches
/// of several data-parallel ranks are combined. Collective; every rank gets the result.
Fp8Statistics merge_fp8_statistics(parallel::World& world, const Fp8Statistics& own);

/// One line of fp8_statistics.jsonl.
nlohmann::json to_json(int64_t step, const Fp8Statistics& statistics);

/// Numbers to plot: the lowest SQNR and the largest fractions of the run's own quantizations, the largest amax among
/// the inputs of linear_fc2, and the alignment of SwiGLU's weights. Missing values are left out.
std::vector<std::pair<std::string, double>> summary(const Fp8Statistics& statistics);

/// One line, with the worst operand.
std::string describe(const Fp8Statistics& statistics);

inline constexpr const char* kFp8StatisticsName = "fp8_statistics.jsonl";

}  // namespace te::train
