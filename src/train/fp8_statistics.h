// What casting to FP8 does to every operand, while training (logging.fp8_statistics_every): the sums of all ranks put
// together, fp8_statistics.jsonl, and what of it stands in metrics.jsonl and TensorBoard. docs/how-to/debug-fp8.md has
// the format.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fp8/observer.h"
#include "parallel/world.h"
#include "train/log_file.h"
#include "train/swiglu_alignment.h"

namespace te::train {

struct Fp8Statistics {
  std::vector<fp8::CastStatistics> operands;
  std::vector<LayerAlignment> swiglu;  ///< empty without SwiGLU
};

/// Of the whole model, in the order of the ranks' stages: parts of one tensor and microbatches of several data ranks
/// are put together. Collective; every rank gets the result.
Fp8Statistics merge_fp8_statistics(parallel::World& world, const Fp8Statistics& own);

/// A line of fp8_statistics.jsonl.
nlohmann::json to_json(int64_t step, const Fp8Statistics& statistics);

/// The numbers that are worth a curve: the lowest SQNR and the largest shares of the run's own casts, the largest amax
/// among the inputs of linear_fc2, the alignment of SwiGLU's weights. Those that are not there are left out.
std::vector<std::pair<std::string, double>> summary(const Fp8Statistics& statistics);

/// In one line, with the operand that comes off worst.
std::string describe(const Fp8Statistics& statistics);

inline constexpr const char* kFp8StatisticsName = "fp8_statistics.jsonl";

class Fp8StatisticsLog {
 public:
  /// UserError when the file cannot be opened.
  explicit Fp8StatisticsLog(const std::filesystem::path& directory)
      : file_(directory / kFp8StatisticsName, "") {}
  void write(const nlohmann::json& record);

 private:
  LogFile file_;
};

}  // namespace te::train
