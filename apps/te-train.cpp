// te-train: trains a GPT or Llama model as a YAML file says.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/error.h"
#include "core/log.h"
#include "train/summary.h"
#include "train/trainer.h"

namespace {

volatile std::sig_atomic_t stop_requested = 0;

void request_stop(int) {
  stop_requested = 1;
}

constexpr const char* kFooter = R"(Examples:
  te-train --config configs/gpt2_124m_fp8.yaml
  te-train --config configs/llama7b_fp8.yaml --dry-run
  te-train --config configs/quickstart_bf16.yaml --set training.train_steps=20 --set precision.fp8=hybrid

Logs go to logging.directory: loss.csv (one line per step) and metrics.jsonl (with FP8 health).
Ctrl-C finishes the step in work and saves a checkpoint; --set checkpoint.resume=auto goes on from it.

Exit codes: 0 done, 1 internal error, 2 wrong input, 3 diverged, 130 interrupted.)";

te::Context open_device(const te::config::Config& config, bool dry_run) {
  using te::config::DeviceChoice;
  const bool usable = te::cuda_device_count() > 0;
  const DeviceChoice choice = config.training.device;
  if (choice == DeviceChoice::cpu || (choice == DeviceChoice::automatic && !usable))
    return te::Context::cpu();
  if (dry_run && !usable) {
    std::printf("no GPU here: the plan leaves out the workspaces of cuDNN\n");
    return te::Context::cpu();
  }
  return te::Context::cuda(static_cast<int>(config.training.device_index));
}

int body(int argc, char** argv) {
  CLI::App app{"te-train: trains GPT and Llama models in BF16 and FP8."};
  app.footer(kFooter);
  std::string config_path;
  std::vector<std::string> overrides;
  bool dry_run = false, print_config = false, verbose = false, describe = false;
  app.add_option("--config", config_path, "YAML file of the run; see docs/configuration.md")
      ->type_name("FILE");
  app.add_option("--set", overrides, "Override a key, as in --set model.num_layers=4; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--dry-run", dry_run, "Check the config, print model and memory plan, and stop; needs no GPU");
  app.add_flag("--print-config", print_config, "Print the effective config as YAML and stop");
  app.add_flag("--describe-keys", describe,
               "Print every config key with type, default and meaning, and stop");
  app.add_flag("--verbose", verbose, "With --dry-run: every buffer of the plan");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    return 0;
  } catch (const CLI::ParseError& error) {
    te::user_error("{}; see te-train --help", error.what());
  }
  if (describe) {
    std::printf("%s", te::config::describe_keys().c_str());
    return 0;
  }
  if (config_path.empty())
    te::user_error("--config FILE is required; see te-train --help and the files in configs/");
  te::config::Config config = te::config::load_config(config_path, overrides);
  if (print_config) {
    std::printf("%s", te::config::to_yaml(config).c_str());
    return 0;
  }

  te::init_log();
  te::Context context = open_device(config, dry_run);
  te::config::validate_for_device(config, context.is_cuda());
  te::train::Trainer trainer(config, context);
  std::printf("%s%s%s%s", te::train::device_summary(context).c_str(),
              te::train::model_summary(config, trainer.model().parameters()).c_str(),
              te::train::precision_summary(config, context).c_str(),
              te::train::memory_summary(trainer.plan(), context).c_str());
  if (dry_run) {
    if (verbose) std::printf("buffers:\n%s", trainer.plan().buffers().c_str());
    return 0;
  }
  std::printf("effective config:\n%s\n", te::config::to_yaml(config).c_str());
  std::fflush(stdout);

  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  switch (trainer.run(&stop_requested)) {
    case te::train::Outcome::finished:
      return 0;
    case te::train::Outcome::diverged:
      return 3;
    case te::train::Outcome::interrupted:
      return 130;
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return te::run_main("te-train", body, argc, argv);
}
