#include "bench/step.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "bench/session.h"
#include "config/config.h"
#include "core/error.h"
#include "data/sampler.h"
#include "parallel/launch.h"
#include "train/flops.h"
#include "train/step_runner.h"

namespace te::bench {
namespace {

struct StepOptions {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  int steps = 20;
  std::string json;
  std::string attention = "config";
  bool alone = false;
};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void run(const StepOptions& options) {
  parallel::World world;
  nlohmann::json report;
  std::vector<std::vector<std::string>> table{{"config", "FP8", "TPxDPxPP", "tokens/step", "ms", "min", "max",
                                               "tokens/s/GPU", "TFLOP/s", "memory", "first step s"}};
  for (const std::string& path : options.configs) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::string> overrides = {"data.synthetic=true", "data.train=[]", "data.valid=[]",
                                          "training.eval_interval=0"};
    if (options.attention == "fastest") overrides.push_back("training.deterministic=false");
    overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
    const config::Config config = config::load_config(path, overrides);
    const parallel::ProcessGrid grid =
        parallel::ProcessGrid::of(world.size(), static_cast<int>(config.parallel.tensor), 1,
                                  static_cast<int>(config.parallel.pipeline));
    const bool cpu = config.training.device == config::DeviceChoice::cpu || cuda_device_count() == 0;
    const Context context =
        world.size() > 1 && !cpu ? parallel::open_cuda_device(world) : open_device(cpu ? "cpu" : "auto");
    config::validate_for_device(config, context.is_cuda());
    const parallel::Groups groups = options.alone ? parallel::Groups::silent(grid, world.rank())
                                                  : parallel::Groups::connect(world, context, grid);
    train::StepRunner runner(config, context, groups);
    runner.allocate();
    runner.initialize();
    const auto data =
        make_synthetic_source(config.model.seq_length, config.model.vocab_size, config.training.seed);
    train::HostBatch batch = runner.make_host_batch();
    const int64_t samples = config.training.global_batch_size;
    data->fill(runner.first_local_sample(), runner.local_samples(), batch.tokens.as<int32_t>(),
               batch.targets.as<int32_t>());
    batch.counted = samples * config.model.seq_length;
    std::vector<double> times;
    double first_step = 0;
    for (int step = 0; step < options.steps + 3; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      runner.launch(batch, step + 1, step * samples, false);
      context.synchronize();
      runner.optimizer().finish_step(runner.optimizer().status().skipped != 0);
      if (step == 0) first_step = milliseconds_since(start) / 1e3;
      if (step >= 3) times.push_back(milliseconds_since(begin));
    }
    std::sort(times.begin(), times.end());
    const double ms = world.max_f64(times[times.size() / 2]);
    const auto tokens = static_cast<double>(samples * config.model.seq_length);
    const double tokens_per_gpu = tokens / ms * 1e3 / world.size();
    const double tflops = train::flops_per_token(config.model) * tokens_per_gpu / 1e12;
    const std::string layout = fmt::format("{}x{}x{}", grid.tensor, grid.data, grid.pipeline);
    const std::string fp8(to_string(config.precision.fp8));
    table.push_back({config.name, fp8, layout, fmt::format("{:.0f}", tokens), fmt::format("{:.2f}", ms),
                     fmt::format("{:.2f}", times.front()), fmt::format("{:.2f}", times.back()),
                     fmt::format("{:.0f}", tokens_per_gpu), fmt::format("{:.1f}", tflops),
                     human_bytes(runner.plan().total_bytes()), fmt::format("{:.1f}", first_step)});
    report.push_back({{"config", config.name},
                      {"fp8", fp8},
                      {"attention", options.attention},
                      {"device", context.info().name},
                      {"tokens_per_step", tokens},
                      {"micro_batch_size", config.training.micro_batch_size},
                      {"ms", ms},
                      {"ms_min", times.front()},
                      {"ms_max", times.back()},
                      {"tokens_per_s", tokens / ms * 1e3},
                      {"tokens_per_s_per_gpu", tokens_per_gpu},
                      {"ranks", world.size()},
                      {"layout", layout},
                      {"tflops", tflops},
                      {"memory_bytes", runner.plan().total_bytes()},
                      {"first_step_s", first_step},
                      {"loss", runner.optimizer().status().loss_sum / static_cast<float>(batch.counted)}});
  }
  if (!world.leader()) return;
  std::printf(
      "whole optimizer steps (clipping, AdamW with FP32 main parameters), random tokens, median of %d\n",
      options.steps);
  print_table(table);
  Options common;
  common.json = options.json;
  write_report(common, report);
}

}  // namespace

void add_step_command(CLI::App& app) {
  const auto options = std::make_shared<StepOptions>();
  CLI::App* command =
      app.add_subcommand("step", "Whole optimizer steps of one or more configs, on random tokens");
  command->add_option("--config", options->configs, "YAML files of te-train")->required()->type_name("FILE");
  command->add_option("--set", options->overrides, "override a key of all configs, as in te-train")
      ->type_name("KEY=VALUE");
  command
      ->add_option("--steps", options->steps,
                   "steps of which the median is taken, after three that do not count")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--attention", options->attention,
                   "backward of attention: fastest, or as the config's training.deterministic says")
      ->check(CLI::IsMember({"config", "fastest"}))
      ->capture_default_str();
  command->add_flag(
      "--alone", options->alone,
      "leave all communication out: what each rank computes if it never waits (the slowest rank counts)");
  command->add_option("--json", options->json, "also write the report to this file");
  command->callback([options] { run(*options); });
}

}  // namespace te::bench
