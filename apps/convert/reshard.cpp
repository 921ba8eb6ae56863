// te-convert reshard: rewrites a checkpoint into the files that another parallel layout would save.
#include "checkpoint/reshard.h"

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/kept_files.h"
#include "common/command_line.h"
#include "convert/commands.h"
#include "core/clock.h"
#include "core/error.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

struct ReshardArguments {
  std::string source, output;
  int tensor = 1, pipeline = 1, data = 1, expert = 1, virtual_stages = 1;
  bool no_optimizer = false;
};

/// The checkpoint's config with another parallel section; UserError if the model cannot be partitioned this way.
config::Config config_of(const checkpoint::Reader& reader, const ReshardArguments& arguments) {
  const config::Config saved = reader.run_config();
  std::vector<std::string> overrides = {
      fmt::format("parallel.tensor={}", arguments.tensor),
      fmt::format("parallel.pipeline={}", arguments.pipeline),
      "parallel.pipeline_split=even",
      fmt::format("parallel.expert={}", arguments.expert),
      "parallel.context=1",  // does not divide parameters
      fmt::format("parallel.virtual_stages={}", arguments.virtual_stages),
      fmt::format("parallel.schedule={}", arguments.virtual_stages > 1 ? "interleaved" : "1f1b")};
  const bool experts = saved.model.num_moe_experts > 0;
  if (arguments.tensor == 1 || experts)
    overrides.push_back(fmt::format("parallel.sequence={}", arguments.tensor > 1));
  // What the new layout does not support, and checkpoints do not depend on.
  if (arguments.expert > 1 && saved.logging.generate_every > 0)
    overrides.emplace_back("logging.generate_every=0");
  if (arguments.expert > 1 && saved.evaluation.every > 0) overrides.emplace_back("evaluation.every=0");
  if (arguments.tensor > 1 && experts &&
      saved.model.moe_router_load_balancing_type == config::BalanceScope::sequence)
    overrides.emplace_back("training.micro_batch_size=1");
  if (arguments.expert == 1)
    overrides.push_back(
        fmt::format("parallel.moe_dispatch_factor={}", config::ParallelConfig{}.moe_dispatch_factor));
  config::Config config = reader.run_config(overrides);
  config.name = saved.name;
  return config;
}

/// Returns the result of `write`, which creates the folder if needed. If it fails, a new empty folder is removed.
template <class Write>
fs::path into_new_folder(const fs::path& folder, Write&& write) {
  std::error_code ignored;
  const bool there = fs::exists(folder, ignored);
  try {
    return write();
  } catch (...) {
    if (!there) fs::remove(folder, ignored);
    throw;
  }
}

void reshard(const ReshardArguments& arguments) {
  const double start = now_seconds();
  const checkpoint::Reader reader(arguments.source);
  const config::Config config = config_of(reader, arguments);
  const auto grid = parallel::ProcessGrid::of(arguments.tensor * arguments.pipeline * arguments.data,
                                              arguments.tensor, 1, arguments.pipeline, arguments.expert);
  const fs::path folder = fs::path(arguments.output) / reader.folder().filename();
  std::error_code error;
  if (fs::exists(folder, error))
    user_error("--out {}: {} exists; choose another folder, or remove it", arguments.output, folder.string());
  int64_t written = 0;
  const fs::path made = into_new_folder(arguments.output, [&] {
    return checkpoint::reshard(reader, config, grid, arguments.output,
                               {.optimizer = !arguments.no_optimizer, .progress = [&](int64_t bytes) {
                                  written = bytes;
                                  apps::check_interrupted();
                                }});
  });
  if (const fs::path kept = checkpoint::find_kept_folder(reader.folder()); !kept.empty())
    checkpoint::keep_files(checkpoint::kept_files(kept), arguments.output);
  fmt::print("{}: {}, {:.1f} MB in {:.1f} s\n", made.string(), grid.str(), static_cast<double>(written) / 1e6,
             now_seconds() - start);
}

}  // namespace

void add_reshard(CLI::App& app) {
  auto arguments = std::make_shared<ReshardArguments>();
  CLI::App* command = app.add_subcommand("reshard", "Rewrite a checkpoint for another parallel layout");
  command
      ->add_option("checkpoint", arguments->source,
                   "Step folder, checkpoint directory or run folder (its latest), or its file best")
      ->required()
      ->type_name("PATH");
  command->add_option("--out", arguments->output, "Checkpoint directory to write")
      ->required()
      ->type_name("DIR");
  const auto ranks = [&](const char* option, int& value, const char* help) {
    command->add_option(option, value, help)->check(CLI::Range(1, 4096))->capture_default_str();
  };
  ranks("--tensor", arguments->tensor, "Tensor-parallel ranks");
  ranks("--pipeline", arguments->pipeline, "Pipeline stages");
  ranks("--data", arguments->data, "Data-parallel ranks, across which the optimizer state is sharded");
  ranks("--expert", arguments->expert, "Ranks of a stage that divide the experts of each layer");
  ranks("--virtual-stages", arguments->virtual_stages, "Model chunks per pipeline stage");
  command->add_flag("--no-optimizer", arguments->no_optimizer, "Omit the Adam moments (a third of the size)");
  command->callback([arguments] { reshard(*arguments); });
}

}  // namespace te::convert
