#include "train/plan_layouts.h"

#include <algorithm>

#include "common/output_file.h"
#include "core/error.h"
#include "planner/layouts.h"
#include "train/execution.h"
#include "train/planned_rank.h"

namespace te::apps {
namespace {

/// The maximum over the pipeline stages. All ranks of a stage need the same amount.
int64_t planned_bytes(const config::Config& config, const parallel::ProcessGrid& grid,
                      parallel::World& world) {
  const Context context = Context::cpu(train::execution_options(config));
  int64_t bytes = 0;
  for (int stage = 0; stage < grid[parallel::Axis::pipeline]; ++stage) {
    const parallel::Groups groups = parallel::Groups::dry_run(
        grid, grid.rank({{parallel::Axis::pipeline, stage}}), train::connect_options(config));
    bytes = std::max(bytes, PlannedRank(config, context, world, groups).plan().total_bytes());
  }
  return bytes;
}

}  // namespace

PlanOptions::PlanOptions(CLI::App& app) : app_(app) {
  app.add_option("--plan", gpus_,
                 "Rank the layouts for this many GPUs by predicted step time, print the best, and stop; "
                 "needs no GPU")
      ->type_name("GPUS")
      ->check(CLI::Range(1, 65536));
  std::vector<std::string> names;
  for (const planner::Gpu& gpu : planner::gpus()) names.emplace_back(gpu.name);
  app.add_option("--gpu", gpu_, "With --plan: GPU model")->check(CLI::IsMember(names))->capture_default_str();
  app.add_option("--gpus-per-host", per_host_, "With --plan: GPUs that are connected by NVLink")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--rows", rows_, "With --plan: number of layouts to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", json_, "With --plan: also write the report to this file")->type_name("FILE");
}

void PlanOptions::check() const {
  if (chosen()) return;
  for (const char* option : {"--gpu", "--gpus-per-host", "--rows", "--json"})
    if (app_.count(option) > 0) user_error("{} needs --plan GPUS", option);
}

std::string PlanOptions::run(const config::Config& config, parallel::World& world) const {
  const planner::Cluster cluster{.gpu = planner::gpu_named(gpu_), .gpus = gpus_, .per_host = per_host_};
  const planner::SearchResult result =
      planner::search(config, cluster, [&](const config::Config& layout, const parallel::ProcessGrid& grid) {
        return planned_bytes(layout, grid, world);
      });
  if (!json_.empty()) {
    OutputFile out("--json", json_);
    out.write(planner::report_json(result, config, cluster, rows_));
    out.finish();
  }
  return planner::report(result, config, cluster, rows_);
}

}  // namespace te::apps
