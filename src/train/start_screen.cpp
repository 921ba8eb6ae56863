#include "train/start_screen.h"

#include <fmt/chrono.h>

#include <filesystem>
#include <sstream>

#include "core/clock.h"
#include "core/printable.h"
#include "core/terminal.h"
#include "model/pipeline_chunks.h"
#include "train/execution.h"
#include "train/flops.h"
#include "train/run_file.h"

namespace te::train {

using parallel::Axis;

namespace {

constexpr int kLabel = 11;    ///< columns of the labels
constexpr int kMaxRanks = 8;  ///< jobs of up to this size have a line per rank
constexpr size_t kMaxHostLines = 4;

std::string now_text() {
  return fmt::format("{:%F %T}", local_time());
}

std::string row(const std::string& label, const std::string& text, int columns) {
  return wrapped(fmt::format("{:<{}}{}", label, kLabel, printable(text)), columns, kLabel);
}

/// Formats "label: text\n  more\n" as rows.
std::string rows_of(const std::string& text, int columns) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      const bool note = line.starts_with("  note: ");
      all += row(note ? "note" : "", line.substr(note ? 8 : 2), columns);
    } else {
      const size_t colon = line.find(": ");
      all += row(line.substr(0, colon), line.substr(colon + 2), columns);
    }
  }
  return all;
}

/// Communication that does not use NCCL.
std::string transport_line(const StartInfo& info) {
  if (!info.context.is_cuda()) return "";
  if (info.grid[Axis::tensor] == 1 || !connect_options(info.config).use_tensor_copy_engines) return "";
  return "tensor-parallel activations with copy engines, everything else with NCCL";
}

std::string ranks_rows(const StartInfo& info, int columns) {
  if (info.ranks.empty()) return "";
  const size_t hosts = info.placement.size();
  const std::string on = hosts == 1 ? "one host" : std::to_string(hosts) + " hosts, network between them";
  std::string text = row("ranks", fmt::format("{}, on {}", info.grid.str(), on), columns);
  const char* label = hosts == 1 ? "host" : "hosts";
  for (const std::string& line : parallel::host_lines(info.placement, kMaxHostLines)) {
    text += row(label, line, columns);
    label = "";
  }
  if (const std::string line = transport_line(info); !line.empty()) text += row("transport", line, columns);
  if (info.grid.world > kMaxRanks) return text;
  std::istringstream lines(info.ranks);
  for (std::string line; std::getline(lines, line);) text += row("", line, columns);
  return text;
}

/// A note if the number of ranks differs from the one that the config is for.
std::string ranks_note(const StartInfo& info) {
  const config::ParallelConfig& parallel = info.config.parallel;
  const int64_t ranks = info.grid.world;
  if (parallel.ranks == 0 || ranks == parallel.intended_ranks()) return "";
  return fmt::format(
      "  note: the config is for {} ranks (parallel.ranks), but this job has {}: memory and time per rank "
      "differ\n",
      parallel.intended_ranks(), ranks);
}

/// What both outputs say about the run; with `tables` also the parameters by part and the memory by kind.
std::string summary(const StartInfo& info, bool tables) {
  const DeviceCaps& caps = device_caps(info.context);
  return device_summary(info.context) + model_summary(info.config, info.parameters, tables) +
         batch_summary(info.config) + model::pipeline_summary(info.config) +
         precision_summary(info.config, info.context) + attention_summary(info.config, info.attention, caps) +
         gemm_summary(info.gemms) + experts_note(info.config.model, caps) + gather_summary(info.parameters) +
         memory_summary(info.plan, info.context, tables) + offload_summary(info.plan, info.config) +
         config_notes(info.config) + ranks_note(info);
}

/// "  section  name value, name value".
std::string keys_rows(const config::Config& config, int columns) {
  std::string text, section, line;
  const auto end_section = [&] {
    if (!line.empty()) text += wrapped(fmt::format("  {:<{}}{}", section, kLabel, line), columns, kLabel + 2);
    line.clear();
  };
  for (const config::SetKey& key : config::explicit_keys(config)) {
    if (key.section != section) end_section();
    section = key.section;
    line += fmt::format("{}{}: {}", line.empty() ? "" : ", ", key.name, printable(key.value));
  }
  end_section();
  return text;
}

}  // namespace

std::string start_screen(const StartInfo& info, int columns) {
  const std::string& folder = info.config.logging.directory;
  return fmt::format("{}, {}\n", info.program, now_text()) +
         row("run", folder + " (complete tables: start.txt)", columns) + ranks_rows(info, columns) +
         rows_of(summary(info, false), columns) +
         row("config",
             fmt::format("{}; keys that differ from their defaults (all: {}/effective_config.yaml):",
                         info.config_path, folder),
             columns) +
         keys_rows(info.config, columns);
}

std::string start_tables(const StartInfo& info) {
  std::string hosts;
  for (const std::string& line : parallel::host_lines(info.placement, info.placement.size()))
    hosts += "host " + line + "\n";
  if (const std::string line = transport_line(info); !line.empty()) hosts += "transport: " + line + "\n";
  return (info.ranks.empty() ? "" : info.ranks + hosts) + summary(info, true);
}

void write_start_files(const StartInfo& info) {
  const std::filesystem::path folder = info.config.logging.directory;
  write_run_file(folder / "start.txt", fmt::format("{}, {}\n{}buffers:\n{}", info.program, now_text(),
                                                   start_tables(info), info.plan.buffers()));
  write_run_file(folder / "effective_config.yaml", config::to_yaml(info.config, info.provenance));
}

}  // namespace te::train
