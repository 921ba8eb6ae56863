// The loss of each dataset of a blend, summed over its samples since the last call of take(). Exact: each sample comes
// from one dataset, and the output layer sums the losses per sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "train/metrics.h"

namespace te::train {

class SourceLosses {
 public:
  /// `names`: of the sources, by index; sources of the same name are merged.
  explicit SourceLosses(const std::vector<std::string>& names);

  /// Adds this rank's samples of a step: source and loss (sum over counted targets) of each, and their targets,
  /// [samples, seq]. Of ranks that hold the same samples only one may add them.
  void add(std::span<const int32_t> sources, std::span<const float> losses, const int32_t* targets,
           int64_t seq_length);
  /// The means over all ranks since the last call; collective.
  std::vector<SourceLoss> take(parallel::World& world);
  /// Discards what was added, after a rollback.
  void clear();

 private:
  struct Sum {
    double loss = 0;
    int64_t tokens = 0;
  };
  std::vector<std::string> names_;  ///< unique
  std::vector<size_t> place_;       ///< index into names_, per source
  std::vector<Sum> sums_;
};

}  // namespace te::train
