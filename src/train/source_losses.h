// The loss of each dataset of a blend: sums over the samples that came from it, since the last time somebody asked.
// Exact, since a sample is cut from one dataset, and the output layer adds up the losses of each sequence by itself.
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
  /// `names`: of the sources, by number; those of equal names are one.
  explicit SourceLosses(const std::vector<std::string>& names);

  /// A step's samples of this rank: the source and the loss (sum over counted targets) of each, and their targets,
  /// [samples, seq]. Ranks that hold the same samples must not all add them.
  void add(std::span<const int32_t> sources, std::span<const float> losses, const int32_t* targets,
           int64_t seq_length);
  /// The means of all ranks since the last call; collective.
  std::vector<SourceLoss> take(parallel::World& world);
  /// Forgets what was added: those steps never were.
  void clear();

 private:
  struct Sum {
    double loss = 0;
    int64_t tokens = 0;
  };
  std::vector<std::string> names_;  ///< without repetitions
  std::vector<size_t> place_;       ///< of a source among them
  std::vector<Sum> sums_;
};

}  // namespace te::train
