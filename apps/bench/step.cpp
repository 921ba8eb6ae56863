#include "bench/step.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "bench/profile.h"
#include "bench/session.h"
#include "config/config.h"
#include "config/validate_device.h"
#include "core/clock.h"
#include "core/error.h"
#include "data/sampler.h"
#include "parallel/watchdog.h"
#include "train/execution.h"
#include "train/flops.h"
#include "train/memory_check.h"
#include "train/step_runner.h"

namespace te::bench {

using parallel::Axis;

namespace {

constexpr int kWarmupSteps = 3;
constexpr int kProfiledSteps = 2;

struct StepOptions {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  int steps = 20;
  std::string json;
  std::string attention = "config";
  bool alone = false;
  bool profile = false;
  bool tune = false;
  std::string timeline;  ///< file for the events of a profiled step, or empty

  bool profiles() const { return profile || !timeline.empty(); }
};

/// Results of the steps of one config.
struct Measured {
  std::vector<double> times;  ///< milliseconds, sorted
  double first_step_s = 0;    ///< from loading the config to the end of its first step
  int64_t memory_bytes = 0, host_memory_bytes = 0;
  double loss = 0;
  std::optional<double>
      requantized;  ///< fraction of the timed steps' quantizations that were requantized (precision.fp8_recast)
  std::optional<Profile> profile;

  double median() const { return times[times.size() / 2]; }
};

config::Config load(const StepOptions& options, const std::string& path) {
  std::vector<std::string> overrides;
  if (options.attention == "fastest") overrides.emplace_back("training.deterministic=false");
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  return load_without_data(path, overrides);
}

/// A model with all its memory, and one batch.
class Steps {
 public:
  /// `host_ranks`: number of ranks that share the host's memory.
  Steps(const config::Config& config, const Context& context, const parallel::Groups& groups, int host_ranks)
      : context_(context), samples_(config.training.global_batch_size), runner_(config, context, groups) {
    // The CUDA driver does not refuse too much page-locked memory, so it is checked here.
    if (runner_.plan().total_host_bytes() > 0) {
      const std::string shortage = train::memory_shortage(
          runner_.plan(), config, context, groups.data().size(), train::free_memory(context, host_ranks));
      if (!shortage.empty()) user_error("{}", shortage);
    }
    runner_.allocate();
    runner_.initialize();
    const auto data =
        data::make_synthetic_source(config.model.seq_length, config.model.vocab_size, config.training.seed);
    batch_ = runner_.make_host_batch();
    const data::Batch all = data->batch(runner_.first_local_sample(), runner_.local_samples());
    runner_.split().copy_local(all.tokens.data(), runner_.local_samples(), batch_.tokens.as<int32_t>());
    runner_.split().copy_local(all.targets.data(), runner_.local_samples(), batch_.targets.as<int32_t>());
    batch_.counted = samples_ * config.model.seq_length;
  }

  void run() {
    const parallel::Watchdog::Guard guard(context_, fmt::format("step {}", step_ + 1));
    runner_.launch(batch_, step_ + 1, step_ * samples_, false);
    context_.synchronize();
    runner_.optimizer().finish_step(runner_.optimizer().status().skipped != 0);
    ++step_;
  }

  double loss() { return runner_.optimizer().status().loss_sum / static_cast<float>(batch_.counted); }
  int64_t memory_bytes() const { return runner_.plan().total_bytes(); }
  bool requantizes() { return runner_.model().recipe().requantizes(); }
  fp8::ScaleTable::QuantizationCount quantizations() {
    return runner_.model().recipe().table().count_quantizations(context_);
  }
  int64_t host_memory_bytes() const { return runner_.plan().total_host_bytes(); }

 private:
  const Context& context_;
  int64_t samples_;
  train::StepRunner runner_;
  train::HostBatch batch_;
  int step_ = 0;
};

/// Searches for GEMM algorithms before the timed run, while its memory is free. `context` itself runs no GEMM here, so
/// it later takes the algorithms found.
void tune(config::Config config, const Context& context, const parallel::Groups& groups, int host_ranks) {
  Profile profile;
  config.training.gemm_autotune = config::GemmAutotune::off;
  {
    const Context first = reopen(context, train::execution_options(config));
    Steps steps(config, first, groups, host_ranks);
    profile = collect_profile(first, 1, [&] { steps.run(); });
  }
  tune_gemms(context, profile);
}

/// Runs and times the steps. The model's memory is freed on return.
Measured measure(const StepOptions& options, const config::Config& config, const Context& context,
                 const parallel::Groups& groups, int host_ranks, double start) {
  Steps steps(config, context, groups, host_ranks);
  Measured measured;
  fp8::ScaleTable::QuantizationCount before;
  for (int i = 0; i < options.steps + kWarmupSteps; ++i) {
    if (i == kWarmupSteps) before = steps.quantizations();
    const double begin = now_seconds();
    steps.run();
    if (i == 0) measured.first_step_s = now_seconds() - start;
    if (i >= kWarmupSteps) measured.times.push_back((now_seconds() - begin) * 1e3);
  }
  std::ranges::sort(measured.times);
  measured.memory_bytes = steps.memory_bytes();
  measured.host_memory_bytes = steps.host_memory_bytes();
  measured.loss = steps.loss();
  const fp8::ScaleTable::QuantizationCount after = steps.quantizations();
  if (steps.requantizes() && after.quantized > before.quantized)
    measured.requantized = static_cast<double>(after.requantized - before.requantized) /
                           static_cast<double>(after.quantized - before.quantized);
  if (options.profiles()) measured.profile = collect_profile(context, kProfiledSteps, [&] { steps.run(); });
  return measured;
}

/// Measures one config: adds a row to the table and an entry to the report, and prints the profile if requested.
void run_config(const StepOptions& options, const std::string& path, parallel::World& world,
                std::vector<std::vector<std::string>>& table, nlohmann::json& report) {
  double start = now_seconds();
  config::Config config;
  parallel::ProcessGrid grid;
  world.run_collectively([&] {
    config = load(options, path);
    grid = train::grid_of(config.parallel, world.size());
  });
  parallel::Watchdog::set_timeout(static_cast<double>(config.parallel.timeout_seconds));
  const Context context = open_rank_device(config, world);
  config = config::for_device(config, device_caps(context));
  const parallel::Groups groups =
      options.alone ? parallel::Groups::no_communication(grid, world.rank(), train::connect_options(config))
                    : parallel::Groups::connect(world, context, grid, train::connect_options(config));
  if (options.tune) {
    tune(config, context, groups, world.local_size());
    start = now_seconds();
  }
  Measured measured = measure(options, config, context, groups, world.local_size(), start);
  for (double& time : measured.times) time = world.max_f64(time);  // of the slowest rank, still sorted
  const double ms = measured.median();
  if (!options.timeline.empty())
    write_timeline(options.timeline, config.name, measured.profile->operations, world);
  if (!world.leader()) return;
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.model.seq_length);
  const double tokens_per_gpu = tokens / ms * 1e3 / world.size();
  const double tflops = train::flops_per_token(config) * tokens_per_gpu / 1e12;
  const std::string layout =
      fmt::format("{}x{}{}x{}", grid[Axis::tensor],
                  grid[Axis::context] == 1 ? "" : fmt::format("CP{}x", grid[Axis::context]), grid[Axis::data],
                  grid[Axis::pipeline]);
  const std::string fp8(to_string(config.precision.fp8));
  std::string memory = human_bytes(measured.memory_bytes);
  if (measured.host_memory_bytes > 0)
    memory += fmt::format(", host {}", human_bytes(measured.host_memory_bytes));
  table.push_back({config.name, fp8, layout, fmt::format("{:.0f}", tokens), fmt::format("{:.2f}", ms),
                   fmt::format("{:.2f}", measured.times.front()),
                   fmt::format("{:.2f}", measured.times.back()), fmt::format("{:.0f}", tokens_per_gpu),
                   fmt::format("{:.1f}", tflops), memory, fmt::format("{:.1f}", measured.first_step_s),
                   measured.requantized ? fmt::format("{:.2f}%", 100.0 * *measured.requantized) : "-"});
  nlohmann::json entry = {{"config", config.name},
                          {"fp8", fp8},
                          {"attention", options.attention},
                          {"device", context.info().name},
                          {"tokens_per_step", tokens},
                          {"micro_batch_size", config.training.micro_batch_size},
                          {"ms", ms},
                          {"ms_min", measured.times.front()},
                          {"ms_max", measured.times.back()},
                          {"tokens_per_s", tokens / ms * 1e3},
                          {"tokens_per_s_per_gpu", tokens_per_gpu},
                          {"ranks", world.size()},
                          {"layout", layout},
                          {"tflops", tflops},
                          {"memory_bytes", measured.memory_bytes},
                          {"host_memory_bytes", measured.host_memory_bytes},
                          {"first_step_s", measured.first_step_s},
                          {"loss", measured.loss}};
  if (measured.requantized) entry["recast"] = *measured.requantized;
  if (measured.profile) {
    add_lower_bounds(context, *measured.profile, options.steps);
    std::printf("%s, FP8 %s, one step of %.0f tokens%s\n", config.name.c_str(), fp8.c_str(), tokens,
                world.size() > 1 ? " (rank 0)" : "");
    print_profile(*measured.profile, ms, "step");
    entry["profile"] = to_json(*measured.profile, ms);
  }
  report.push_back(std::move(entry));
}

/// Prints a row of the table as soon as it is measured, since later configs may take minutes or fail.
void announce(const std::vector<std::string>& row) {
  std::fprintf(stderr, "%s, FP8 %s, %s: %s ms, %s tokens/s/GPU\n", row[0].c_str(), row[1].c_str(),
               row[2].c_str(), row[4].c_str(), row[7].c_str());
}

void check_timeline_option(const StepOptions& options, parallel::World& world) {
  if (options.timeline.empty()) return;
  if (options.configs.size() > 1)
    user_error("--timeline {}: needs exactly one --config, not {}", options.timeline, options.configs.size());
  if (world.leader()) check_timeline(options.timeline);
}

void run(const StepOptions& options, parallel::World& world) {
  Options common;
  common.json = options.json;
  world.run_collectively([&] {
    check_timeline_option(options, world);
    if (world.leader()) check_report(common);
  });
  nlohmann::json report;
  std::vector<std::vector<std::string>> table{{"config", "FP8", "TPxDPxPP", "tokens/step", "ms", "min", "max",
                                               "tokens/s/GPU", "TFLOP/s", "memory", "first step s",
                                               "requantized"}};
  for (const std::string& path : options.configs) {
    run_config(options, path, world, table, report);
    if (!world.leader()) continue;
    write_report(common, report);
    if (options.configs.size() > 1) announce(table.back());
  }
  if (!world.leader()) return;
  std::printf("whole optimizer steps (with clipping and FP32 master weights), random tokens, median of %d\n",
              options.steps);
  print_table(table);
}

}  // namespace

void add_step_command(CLI::App& app, parallel::World& world) {
  const auto options = std::make_shared<StepOptions>();
  CLI::App* command =
      app.add_subcommand("step", "Whole optimizer steps of one or more configs with random tokens");
  command->add_option("--config", options->configs, "YAML files of te-train")->required()->type_name("FILE");
  command
      ->add_option("--set", options->overrides,
                   "override a key of all configs, as in te-train (may be repeated)")
      ->type_name("KEY=VALUE");
  command
      ->add_option("--steps", options->steps,
                   "number of timed steps after three warmup steps; the median is reported")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--attention", options->attention,
                   "cuDNN's backward kernel: fastest, or config: as training.deterministic says")
      ->check(CLI::IsMember({"config", "fastest"}))
      ->capture_default_str();
  command->add_flag(
      "--alone", options->alone,
      "omit all communication: time of each rank if it never waits (the slowest rank is reported)");
  command->add_flag(
      "--profile", options->profile,
      "also time every operation of two more steps, and show the speed-of-light time of each kind; "
      "with several ranks also how much communication is hidden by computation");
  command
      ->add_option("--timeline", options->timeline,
                   "imply --profile, and write the last profiled step of all ranks to this file as "
                   "trace events for ui.perfetto.dev and scripts/plot_timeline.py")
      ->type_name("FILE");
  command->add_flag("--tune", options->tune,
                    "first search for the algorithms of all GEMMs, as training.gemm_autotune: full does, and "
                    "save them for later runs");
  command->add_option("--json", options->json, "also write the report to this file")->type_name("FILE");
  command->callback([options, &world] { run(*options, world); });
}

}  // namespace te::bench
