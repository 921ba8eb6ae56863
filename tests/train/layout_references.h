// Reference runs on one rank, with which layouts are compared. Each reference is computed by one rank, several ranks
// work in parallel, and every rank receives the results.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "layout_run.h"

namespace te::testing {

class LayoutReferences {
 public:
  explicit LayoutReferences(RunOptions options) : options_(std::move(options)) {}
  /// Returns the runs of these one-rank configs. Collective; throws on all ranks if one has failed.
  std::vector<const Trace*> of(const std::vector<config::Config>& configs);

 private:
  RunOptions options_;
  std::map<std::string, Trace> traces_;  ///< by the config's YAML
};

}  // namespace te::testing
