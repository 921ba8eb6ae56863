// Runs on one rank with which layouts are compared. The ranks of a job find them out together: each is made by one
// rank, as many at a time as there are ranks, and the others are given its bits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "layout_run.h"

namespace te::testing {

class LayoutReferences {
 public:
  explicit LayoutReferences(RunOptions options) : options_(std::move(options)) {}
  /// The runs of these configs, which are of one rank. Collective; throws on all ranks where one has failed.
  std::vector<const Trace*> of(const std::vector<config::Config>& configs);

 private:
  RunOptions options_;
  std::map<std::string, Trace> traces_;  ///< by the config's YAML
};

}  // namespace te::testing
