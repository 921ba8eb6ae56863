// te-train --plan: the layouts that a job of so many GPUs can have, by predicted time (planner/layouts.h).
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
  /// UserError where options of --plan are given without it.
  void check() const;
  /// Searches, and writes --json FILE; the tables, as they are to be printed.
  std::string run(const config::Config& config, parallel::World& world) const;

 private:
  CLI::App& app_;
  int gpus_ = 0, per_host_ = 8, rows_ = 10;
  std::string gpu_ = "h200", json_;
};

}  // namespace te::apps
