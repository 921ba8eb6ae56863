// te-train --plan: ranks the possible layouts for a number of GPUs by predicted step time (planner/layouts.h).
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "config/config.h"
#include "parallel/world.h"

namespace te::apps {

class PlanOptions {
 public:
  explicit PlanOptions(CLI::App& app);
  bool chosen() const { return gpus_ > 0; }
  /// UserError if options of --plan are given without it.
  void check() const;
  /// Searches, writes --json FILE, and returns the tables to print.
  std::string run(const config::Config& config, parallel::World& world) const;

 private:
  CLI::App& app_;
  int gpus_ = 0, per_host_ = 8, rows_ = 10;
  std::string gpu_ = "h200", json_;
};

}  // namespace te::apps
