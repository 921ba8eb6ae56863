// One training run of a small model through StepRunner, on one rank or as a rank of a layout, and its results for
// comparison: losses, gradient norms, and every gradient and master weight that the rank holds, with the global index
// of each element.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "train/step_runner.h"

namespace te::testing {

/// This rank's part of a parameter: value[i] is element index[i] of the full, flattened parameter.
struct Part {
  std::string name;
  int64_t numel = 0;  ///< of the full parameter
  std::vector<int64_t> index;
  std::vector<float> value;
};
using Parts = std::vector<Part>;

struct Trace {
  std::vector<double> loss, grad_norm;  ///< of every step
  std::vector<double> z_loss;           ///< likewise, with z-loss
  double valid_loss = 0;                ///< after the last step
  std::map<int, Parts> grads;           ///< of the steps in `grads_at`, summed over the ranks
  Parts mains;                          ///< after the last step
  /// After step 1 and after the last one: scale and amax history of every FP8 operand of this rank, by
  /// "layers.0.mlp.linear_fc1 input".
  std::map<int, std::map<std::string, std::vector<float>>> fp8;
  size_t buckets = 0;
};

struct RunOptions {
  int steps = 20;
  std::vector<int> grads_at;
  int valid_microbatches = 4;
  parameters::DataParallelOptions data_parallel{};
};

/// Collective over the groups' ranks. Batches are a pure function of the sample index.
Trace train_small(const config::Config& config, const parallel::Groups& groups, const RunOptions& options);

}  // namespace te::testing
