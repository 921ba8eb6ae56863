// te-convert merge: adds adapters to their base and writes the result as a checkpoint.
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/kept_files.h"
#include "common/progress.h"
#include "convert/adapter.h"
#include "convert/commands.h"
#include "convert/foreign_model.h"
#include "convert/output_folder.h"
#include "core/error.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

struct MergeArguments {
  std::vector<std::string> adapters;
  std::string base, output;
  bool force = false;
};

bool is_merged(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name != "step_00000000" && name != "latest" && name != checkpoint::kKeptFolder) return false;
  }
  return fs::exists(folder / "latest", error) && !error;
}

/// Base and adapters. Config and tokenizer belong to the last adapter run, which trained the weights of the result.
/// PEFT folders alone leave the base's config and tokenizer, and a run that keeps no tokenizer the base's tokenizer.
struct Merged {
  std::unique_ptr<checkpoint::WeightSource> weights;
  std::string config;
  fs::path tokenizer;  ///< folder with the tokenizer's files; empty if there is none
};

Merged open(const MergeArguments& arguments) {
  Merged merged;
  fs::path base = arguments.base.empty() ? fs::path(arguments.adapters.front()) : fs::path(arguments.base);
  merged.weights = open_weights(base);
  merged.config = merged.weights->config();
  config::Config config = config::parse_config(merged.config, base.string());
  std::vector<std::string> adapters = arguments.adapters;
  if (arguments.base.empty()) {
    // An adapter checkpoint names its base, with which it was opened.
    if (dynamic_cast<const AdaptedWeights*>(merged.weights.get()) == nullptr)
      user_error("{}: is not an adapter checkpoint, which names its base; give --base", base.string());
    base = checkpoint::Reader(base).manifest().base->path;
    adapters.erase(adapters.begin());
  }
  if (const auto run = last_run(arguments.adapters)) {
    config = run->run_config();
    config.adapter = {};
    config.checkpoint.init_from.clear();
    config::validate(config);
    merged.config = config::to_yaml(config);
    merged.tokenizer = checkpoint::find_kept_folder(run->folder());
  }
  merged.weights = with_adapters(std::move(merged.weights), config.model, adapters);
  if (merged.tokenizer.empty())
    merged.tokenizer =
        is_foreign_model(base) ? base : checkpoint::find_kept_folder(checkpoint::Reader(base).folder());
  return merged;
}

void merge(const MergeArguments& arguments) {
  const Merged merged = open(arguments);
  int64_t total = 0;
  for (const std::string& name : merged.weights->names()) {
    const checkpoint::TensorInfo info = *merged.weights->info(name);
    total += info.rows() * info.cols() * static_cast<int64_t>(dtype_size(info.dtype));
  }
  OutputFolder output(arguments.output, arguments.force, "a checkpoint that te-convert merge made",
                      is_merged);
  if (!merged.tokenizer.empty())
    checkpoint::copy_files(checkpoint::kept_files(merged.tokenizer), output.path() / checkpoint::kKeptFolder);
  apps::Progress progress(total, "written");
  const int64_t bytes = write_weights(*merged.weights, merged.config, output.path(),
                                      [&](int64_t written) { progress.show(written); });
  output.commit();
  fmt::print("{}: {}, {:.1f} MB in {:.1f} s\n", arguments.output, merged.weights->title(),
             static_cast<double>(bytes) / 1e6, progress.seconds());
}

}  // namespace

void add_merge(CLI::App& app) {
  auto arguments = std::make_shared<MergeArguments>();
  CLI::App* command = app.add_subcommand("merge", "Add LoRA adapters to their base");
  command
      ->add_option("adapters", arguments->adapters,
                   "Adapter checkpoints or PEFT folders, which are added one after the other")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("--base", arguments->base,
                   "Checkpoint or Hugging Face folder (default: the base that the adapter checkpoint names)")
      ->type_name("PATH");
  command->add_option("--out", arguments->output, "Checkpoint directory to write")
      ->required()
      ->type_name("DIR");
  command->add_flag("--force", arguments->force, "Replace an earlier merge");
  command->footer(
      "Weights keep the dtype of the base. te-convert export writes the result as a Hugging Face model.\n\n"
      "  te-convert merge runs/lora/checkpoints --out checkpoints/merged");
  command->callback([arguments] { merge(*arguments); });
}

}  // namespace te::convert
