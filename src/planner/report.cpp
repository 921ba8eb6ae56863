#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/memory_plan.h"
#include "planner/layouts.h"

namespace te::planner {

using parallel::Axis;

namespace {

using Row = std::vector<std::string>;
using Part = std::pair<const char*, double>;

std::array<Part, 5> parts_of(const StepTime& time) {
  return {{{"compute", time.compute},
           {"tensor", time.communication},
           {"pipeline", time.pipeline},
           {"data", time.data},
           {"update", time.update}}};
}

std::string schedule_of(const config::ParallelConfig& layout) {
  if (layout.pipeline == 1) return "-";
  std::string name(to_string(layout.schedule));
  if (layout.virtual_stages > 1) name += fmt::format(" {}", layout.virtual_stages);
  return layout.pipeline_split == "even" ? name : fmt::format("{}, {}", name, layout.pipeline_split);
}

Row row_of(const std::string& number, const Layout& layout) {
  const parallel::ProcessGrid& grid = layout.grid;
  const config::Config& config = layout.config;
  Row row{number,
          fmt::format("{}x{}x{}x{}{}", grid[Axis::tensor], grid[Axis::context], grid[Axis::data],
                      grid[Axis::pipeline], grid.experts > 1 ? fmt::format(" ep{}", grid.experts) : ""),
          schedule_of(config.parallel),
          fmt::format("{}", config.training.micro_batch_size),
          std::string(to_string(config.training.recompute)),
          std::string(to_string(config.parallel.shard)),
          fmt::format("{:.3f}", layout.time.total()),
          fmt::format("{:.0f}", layout.tokens_per_gpu)};
  for (const auto& [name, seconds] : parts_of(layout.time))
    row.push_back(fmt::format("{:.1f}", 100.0 * std::max(0.0, seconds) / layout.time.total()));
  row.push_back(human_bytes(layout.memory_bytes));
  return row;
}

/// Columns of equal width; text aligned left, numbers right.
std::string aligned(const std::vector<Row>& rows) {
  constexpr size_t kTextColumns = 6;
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool left = i > 0 && i < kTextColumns;
      line += left ? fmt::format("{:<{}}  ", row[i], widths[i]) : fmt::format("{:>{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string configured_line(const SearchResult& result) {
  if (!result.configured)
    return fmt::format("the config's own layout is not valid: {}\n", result.configured_refusal);
  if (!result.configured_fits())
    return fmt::format("the config's own layout does not fit: it needs {}\n",
                       human_bytes(result.configured->memory_bytes));
  const double best = result.layouts.front().tokens_per_gpu;
  const int64_t rank = result.configured_rank();
  if (rank == 1)
    return fmt::format("the config's own layout is as fast as the best of {}\n", result.layouts.size());
  return fmt::format(
      "the config's own layout would be number {} in this list: {:.1f}% slower than the best\n", rank,
      100.0 * (1.0 - result.configured->tokens_per_gpu / best));
}

nlohmann::json json_of(const Layout& layout) {
  nlohmann::json shares;
  for (const auto& [name, seconds] : parts_of(layout.time)) shares[name] = seconds;
  return {{"tensor", layout.grid[Axis::tensor]},
          {"context", layout.grid[Axis::context]},
          {"data", layout.grid[Axis::data]},
          {"pipeline", layout.grid[Axis::pipeline]},
          {"expert", layout.grid.experts},
          {"sequence", layout.config.parallel.sequence},
          {"transport", to_string(layout.config.parallel.transport)},
          {"tensor_overlap", layout.config.parallel.tensor_overlap},
          {"schedule", to_string(layout.config.parallel.schedule)},
          {"virtual_stages", layout.config.parallel.virtual_stages},
          {"pipeline_split", layout.config.parallel.pipeline_split},
          {"shard", to_string(layout.config.parallel.shard)},
          {"micro_batch_size", layout.config.training.micro_batch_size},
          {"recompute", to_string(layout.config.training.recompute)},
          {"seconds_per_step", layout.time.total()},
          {"seconds", shares},
          {"tokens_per_s_per_gpu", layout.tokens_per_gpu},
          {"memory_bytes", layout.memory_bytes},
          {"settings", layout.settings}};
}

size_t shown(const SearchResult& result, int rows) {
  return std::min(result.layouts.size(), static_cast<size_t>(rows));
}

}  // namespace

std::string report(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                   int rows) {
  const int hosts = (cluster.gpus + cluster.per_host - 1) / cluster.per_host;
  std::string text = fmt::format(
      "predicted for {} x {}{}, {} x {} tokens per step: {} valid layouts, {} do not fit into {}\n",
      cluster.gpus, cluster.gpu.title, hosts == 1 ? "" : fmt::format(" on {} hosts", hosts),
      config.training.global_batch_size, config.model.seq_length, result.legal, result.too_large,
      human_bytes(result.capacity_bytes));
  text += fmt::format(
      "the fastest variant of each division into tensor x context x data x pipeline ranks{}; step time by "
      "part "
      "in %\n\n",
      config.model.num_moe_experts > 0 ? ", epN: with parallel.expert N" : "");
  std::vector<Row> table{{"", "ranks", "schedule", "microbatch", "recompute", "shard", "s/step",
                          "tokens/s/GPU", "compute", "tensor", "pipeline", "data", "update", "memory"}};
  for (size_t i = 0; i < shown(result, rows); ++i)
    table.push_back(row_of(std::to_string(i + 1), result.layouts[i]));
  if (result.configured) table.push_back(row_of("own", *result.configured));
  text += aligned(table) + '\n' + configured_line(result) + '\n';
  for (size_t i = 0; i < shown(result, rows); ++i) {
    const std::string& settings = result.layouts[i].settings;
    text += fmt::format("{:>2}  {}\n", i + 1, settings.empty() ? "the given config" : settings);
  }
  return text;
}

std::string report_json(const SearchResult& result, const config::Config& config, const Cluster& cluster,
                        int rows) {
  nlohmann::json layouts = nlohmann::json::array();
  for (size_t i = 0; i < shown(result, rows); ++i) layouts.push_back(json_of(result.layouts[i]));
  nlohmann::json report = {{"config", config.name},
                           {"gpu", cluster.gpu.name},
                           {"gpus", cluster.gpus},
                           {"gpus_per_host", cluster.per_host},
                           {"capacity_bytes", result.capacity_bytes},
                           {"legal", result.legal},
                           {"too_large", result.too_large},
                           {"cuts", result.layouts.size()},
                           {"layouts", layouts}};
  if (result.configured) {
    report["own"] = json_of(*result.configured);
    report["own"]["fits"] = result.configured_fits();
    if (result.configured_fits()) report["own"]["rank"] = result.configured_rank();
  } else {
    report["own_refusal"] = result.configured_refusal;
  }
  return dump_json(report, 2) + '\n';
}

}  // namespace te::planner
