// te-train: trains a GPT or Llama model that a YAML file describes.
#include <fmt/ranges.h>

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/command_line.h"
#include "common/config_words.h"
#include "common/standard_output.h"
#include "config/config.h"
#include "config/presets.h"
#include "config/provenance.h"
#include "config/validate_device.h"
#include "core/error.h"
#include "core/log.h"
#include "core/terminal.h"
#include "model/pipeline_chunks.h"
#include "parallel/launch.h"
#include "parallel/placement.h"
#include "parallel/schedule/draw.h"
#include "parallel/watchdog.h"
#include "planner/cost_trace.h"
#include "train/data_check.h"
#include "train/decoded_samples.h"
#include "train/decoded_tasks.h"
#include "train/execution.h"
#include "train/inspect_fp8.h"
#include "train/memory_check.h"
#include "train/mpirun.h"
#include "train/plan_layouts.h"
#include "train/planned_rank.h"
#include "train/run_record.h"
#include "train/same_on_all_ranks.h"
#include "train/signals.h"
#include "train/start_screen.h"
#include "train/state_copy.h"
#include "train/trainer.h"
#include "version/version.h"

namespace {

te::train::Requests requests;
constexpr int kInterrupted = 130;

constexpr const char* kFooter = R"(Examples:
  te-train --config configs/gpt2_124m_fp8.yaml
  te-train --config configs/llama7b_fp8.yaml --dry-run
  te-train --config configs/llama3.1_70b_fp8.yaml --plan 64 --gpu h100
  mpirun -n 4 te-train --config configs/llama7b_fp8.yaml --set parallel.tensor=2
  te-train --config configs/quickstart_bf16.yaml --set training.train_steps=20 --set precision.fp8=hybrid
  te-train --config preset:llama3_8b --config run.yaml --print-config
  te-train inspect-fp8 --checkpoint runs/small/checkpoints --data data/bible_valid

Logs are written to logging.directory: loss.csv (one line per step), metrics.jsonl (with FP8 statistics), TensorBoard
event files, and samples.jsonl (logging.generate_every).
Ctrl-C, SIGTERM, SIGHUP and SIGUSR2 finish the current step, save a checkpoint and stop; --set checkpoint.resume=auto
resumes from it. A second Ctrl-C stops at once. After SIGUSR1 te-train saves a checkpoint and continues.

Exit codes: 0 done, 1 internal error, 2 wrong input, 3 diverged, or probably diverged (the last steps were loss
spikes), 130 interrupted.)";

/// The device of a dry run, which one rank makes.
te::Context open_planned_device(const te::config::Config& config) {
  using te::config::DeviceChoice;
  const te::ExecutionOptions options = te::train::execution_options(config);
  if (config.training.device != DeviceChoice::cpu && te::cuda_device_count() > 0)
    return te::Context::cuda(0, options);
  if (config.training.device == DeviceChoice::cuda)
    std::printf("no GPU found: the plan does not include cuDNN workspaces\n");
  return te::Context::cpu(options);
}

/// What te-train prints before it stops without training.
struct Show {
  bool dry_run = false, verbose = false, schedule = false;
  int ranks = 0;  ///< of the layout that is shown
};

/// The number of ranks of the job that is shown; prints the reason for it if the user has not set it.
int shown_ranks(const te::config::ParallelConfig& parallel, const te::parallel::World& world, int asked) {
  if (asked > 0) return asked;
  const auto minimum = static_cast<int>(parallel.model_ranks());
  if (world.size() > 1) return std::max(world.size(), minimum);
  const auto ranks = static_cast<int>(parallel.intended_ranks());
  if (ranks > 1)
    std::printf("planning for %d ranks, %s; --ranks N plans for another number\n", ranks,
                ranks == minimum ? "the minimum of the layout (the parallel section)"
                                 : "as the config says (parallel.ranks)");
  return ranks;
}

// Wraps long lines on a terminal only, so that files can be searched by line.
void print_tables(const std::string& text) {
  const te::Terminal terminal = te::console_terminal();
  std::printf("%s", terminal.is_terminal ? te::wrapped_lines(text, terminal.columns).c_str() : text.c_str());
  std::fflush(stdout);
}

// The plan of one rank per pipeline stage: all tensor- and data-parallel ranks of a stage need as much memory.
void show_layout(const te::config::Config& config, const te::Context& context, te::parallel::World& world,
                 const te::parallel::ProcessGrid& grid, bool verbose) {
  for (int stage = 0; stage < grid[te::parallel::Axis::pipeline]; ++stage) {
    const int rank = grid.rank({{te::parallel::Axis::pipeline, stage}});
    const te::parallel::Groups groups =
        te::parallel::Groups::dry_run(grid, rank, te::train::connect_options(config));
    te::apps::PlannedRank rank_plan(config, context, world, groups);
    te::train::StepRunner& runner = rank_plan.runner();
    if (stage == 0) {
      print_tables(te::train::device_summary(context) +
                   te::train::model_summary(config, runner.model().parameters(), true) +
                   te::train::batch_summary(config) + te::train::precision_summary(config, context) +
                   te::model::pipeline_summary(config) + te::train::config_notes(config));
    }
    if (grid.world > 1)
      print_tables(fmt::format("\nrank {} of {} ({})\n", rank, grid.str(), groups.at().str()));
    if (stage > 0) print_tables(te::train::model_summary(config, runner.model().parameters(), false));
    print_tables(te::train::gather_summary(runner.model().parameters()) +
                 te::train::memory_summary(runner.plan(), context, true) +
                 te::train::offload_summary(runner.plan(), config) +
                 (config.guard.every > 0 ? fmt::format("  guard: {} of host memory for a copy of the state\n",
                                                       te::human_bytes(te::train::state_copy_bytes(runner)))
                                         : "") +
                 (verbose ? "buffers:\n" + runner.plan().buffers() : ""));
    const std::string shortage = te::train::memory_shortage(
        runner.plan(), config, context, groups.data().size(), te::train::free_memory(context, 1),
        config.guard.every > 0 ? te::train::state_copy_bytes(runner) : 0);
    if (shortage.empty()) continue;
    // A plan for another machine's GPU is not an error.
    const bool for_here = context.is_cuda() || config.training.device == te::config::DeviceChoice::cpu;
    if (for_here) te::user_error("{}", shortage);
    print_tables(fmt::format("  note: it does not fit in the memory of this machine's CPU: {}\n", shortage));
  }
}

// mpirun kills its ranks soon after it receives a signal, unless te-train can delay it (MpirunWatch).
void warn_of_mpirun(te::parallel::World& world, const te::train::MpirunWatch& mpirun) {
  constexpr double kEnough = 60;
  const std::optional<double> seconds = te::train::seconds_until_mpirun_kills();
  if (mpirun.holds() || !world.leader() || !seconds || *seconds >= kEnough) return;
  const te::train::Mpirun above = te::train::parent_mpirun();
  te::log_warning(
      "on Ctrl-C and SIGTERM mpirun kills its ranks after {:g} s, perhaps before the checkpoint is saved: "
      "{}stop the run with kill -USR2 {}",
      *seconds, above.prrte ? "" : "start it with mpirun --mca odls_base_sigkill_timeout 600 ..., or ",
      above.process);
}

/// How a run is started, in addition to its config.
struct Start {
  std::string config_path;  ///< several: joined by " + "
  te::config::Provenance provenance;
  bool overwrite = false, verbose = false;
};

int train(te::config::Config config, te::parallel::World& world, const Start& start) {
  te::parallel::Watchdog::set_timeout(static_cast<double>(config.parallel.timeout_seconds));
  const te::train::ProgramVersion version{te::apps::project_version(), te::apps::build_commit()};
  const std::string program = fmt::format("te-train {} ({})", version.version, version.commit.substr(0, 12));
  te::train::check_same_run(world, config, program, start.overwrite);
  te::parallel::ProcessGrid grid;
  world.run_collectively([&] {
    grid = te::train::grid_of(config.parallel, world.size());
    te::parallel::check(te::train::schedule_shape(config.training, config.parallel, grid));
  });
  te::Context context = te::parallel::open_device(world, to_string(config.training.device),
                                                  te::train::execution_options(config));
  world.run_collectively([&] { config = te::config::for_device(config, te::device_caps(context)); });
  const te::parallel::Groups groups =
      te::parallel::Groups::connect(world, context, grid, te::train::connect_options(config));
  te::train::Trainer trainer(config, context, world, groups, start.overwrite);
  world.run_collectively([&] {
    if (auto samples = te::apps::make_sample_maker(config, context, groups))
      trainer.make_samples_with(std::move(samples));
    if (auto tasks = te::apps::make_evaluator(config, context, world, groups))
      trainer.set_evaluator(std::move(tasks));
    if (config.precision.fp8 != te::config::Fp8Mode::off &&
        (config.logging.generate_every > 0 || config.evaluation.every > 0))
      te::log_info(
          "samples and evaluation tasks run in {}, without FP8; validation runs in the precision of training",
          te::config::to_string(config.precision.dtype));
  });
  const te::parallel::Placement placement = te::parallel::find_placement(world, context);
  const te::train::StartInfo info{
      .config = config,
      .context = context,
      .plan = trainer.plan(),
      .parameters = trainer.model().parameters(),
      .grid = grid,
      .placement = placement,
      .provenance = start.provenance,
      .attention = trainer.model().attention_kernels(context),
      .gemms = te::planner::trace_gemms(config, context),
      .program = program,
      .config_path = start.config_path,
      .ranks = world.size() > 1 ? te::parallel::binding_table(world, context, grid) : ""};
  if (start.verbose && world.leader()) {
    print_tables(te::train::start_tables(info) + "effective config:\n" +
                 te::config::to_yaml(config, start.provenance));
  } else {
    te::print_plain(te::train::start_screen(info, te::console_terminal().columns));
  }
  if (const std::string crossing = te::parallel::crossing_groups(placement, grid); !crossing.empty())
    te::log_warning("{}", crossing);
  bool recorded = false;
  const auto record = [&](const te::train::RunInputs& inputs) {
    te::train::write_run_record(config, context, placement, trainer.plan(), inputs, version);
    recorded = true;
    te::train::write_start_files(info);
  };
  const te::train::Outcome end = trainer.run(requests, record);
  if (recorded) te::train::record_end(config, te::to_string(end));
  switch (end) {
    case te::train::Outcome::finished:
    case te::train::Outcome::stopped_early:
      return 0;
    case te::train::Outcome::diverged:
      return 3;
    case te::train::Outcome::interrupted:
      return kInterrupted;
  }
  return 1;
}

int train_under_signals(const te::config::Config& config, te::parallel::World& world, const Start& start) {
  te::train::catch_signals(requests, world.leader(), world.size());
  const te::train::MpirunWatch mpirun(world, requests);
  warn_of_mpirun(world, mpirun);
  const int code = train(config, world, start);
  te::apps::allow_lost_output("te-train");
  requests.over = 1;
  if (code != kInterrupted) return code;
  world.barrier();  // all ranks have saved and closed their files
  if (world.local_rank() == 0) mpirun.end_waits();
  return code;
}

struct Options {
  std::vector<std::string> configs, overrides;
  bool print_config = false, describe = false, presets = false, overwrite = false;
  std::string level = "info";
  Show show;
};

void add_options(CLI::App& app, Options& o) {
  app.add_option("--config", o.configs,
                 "YAML file of the run, or preset:NAME; may be repeated, later files override earlier ones "
                 "(docs/reference/configuration.md)")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--set", o.overrides, "Override a key, as in --set model.num_layers=4; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag(
      "--overwrite", o.overwrite,
      "If logging.directory has an earlier run, remove its logs and checkpoints and start at step 1");
  app.add_flag("--dry-run", o.show.dry_run,
               "Check the config, print the model and the memory plan, and stop; needs no GPU");
  app.add_flag("--print-config", o.print_config,
               "Print the effective config as YAML, with the origin of each value in a comment, and stop");
  app.add_flag("--list-presets", o.presets,
               "Print the presets (for --config preset:NAME) and their model shapes, and stop");
  app.add_flag("--describe-keys", o.describe,
               "Print every config key with type, allowed values, default and meaning, and stop");
  app.add_flag(
      "--verbose", o.show.verbose,
      "Print all tables and the whole config at the start; with --dry-run: every buffer of the plan");
  app.add_option("--log-level", o.level, "What is printed: info, warning (no steps) or error")
      ->check(CLI::IsMember({"info", "warning", "error"}));
  app.add_flag("--print-schedule", o.show.schedule, "Draw the pipeline schedule and stop");
  app.add_option(
         "--ranks", o.show.ranks,
         "With --dry-run and --print-schedule: ranks of the job (default: parallel.ranks, or the minimum "
         "of the layout)")
      ->check(CLI::Range(1, 1048576));
}

void check(const Options& o, const te::apps::PlanOptions& plan) {
  plan.check();
  if (o.show.ranks > 0 && !o.show.dry_run && !o.show.schedule)
    te::user_error(
        "--ranks needs --dry-run or --print-schedule; to train on several ranks, start mpirun -n {} "
        "te-train",
        o.show.ranks);
  if (plan.chosen() && (o.show.ranks > 0 || o.show.dry_run || o.show.schedule))
    te::user_error(
        "--plan N shows layouts for N GPUs; --dry-run, --print-schedule and --ranks show the layout of the "
        "config: use one or the other");
  std::vector<const char*> given;
  if (plan.chosen()) given.push_back("--plan");
  if (o.print_config) given.push_back("--print-config");
  if (o.describe) given.push_back("--describe-keys");
  if (o.presets) given.push_back("--list-presets");
  if (o.show.dry_run || o.show.schedule) given.push_back(o.show.dry_run ? "--dry-run" : "--print-schedule");
  if (given.size() > 1)
    te::user_error("{} and {} print different things and stop; give one of them", given[0], given[1]);
}

/// --print-schedule and --dry-run, on one rank.
void show_plan(te::config::Config config, te::parallel::World& world, const Show& show) {
  const te::parallel::ProcessGrid grid =
      te::train::grid_of(config.parallel, shown_ranks(config.parallel, world, show.ranks));
  if (show.schedule) {
    const te::parallel::ScheduleShape shape =
        te::train::schedule_shape(config.training, config.parallel, grid);
    std::printf("%s", te::parallel::draw(te::parallel::make_schedule(shape), shape).c_str());
  }
  if (!show.dry_run) return;
  const te::Context context = open_planned_device(config);
  config = te::config::for_device(config, te::device_caps(context));
  for (const std::string& line : te::train::check_planned_data(config)) print_tables(line + "\n");
  show_layout(config, context, world, grid, show.verbose);
}

int body(te::parallel::World& world, int argc, char** argv) {
  CLI::App app{"te-train: trains GPT and Llama models in FP8, BF16, FP16 or FP32.", "te-train"};
  app.footer(kFooter);
  Options o;
  add_options(app, o);
  te::apps::PlanOptions plan(app);
  app.require_subcommand(0, 1);
  const te::apps::Command inspect_fp8 = te::apps::add_inspect_fp8(app);
  if (!te::apps::parse_command_line(app, argc, argv, !world.leader(), te::apps::config_words())) return 0;
  check(o, plan);
  if (inspect_fp8.chosen()) {
    te::init_log(world.leader() ? te::LogLevel::warning : te::LogLevel::error);
    return inspect_fp8.run(world);
  }
  if (o.describe || o.presets) {
    if (world.leader())
      print_tables(o.describe ? te::config::describe_keys() : te::config::describe_presets());
    return 0;
  }
  if (o.configs.empty())
    te::user_error("--config FILE is required; see te-train --help and the files in configs/");
  te::config::Config config;
  te::config::Provenance provenance;
  world.run_collectively([&] { config = te::config::load_config(o.configs, o.overrides, &provenance); });
  if (o.overwrite && config.checkpoint.resume != "never") {
    te::user_error("--overwrite starts at step 1, but checkpoint.resume ({}) resumes: remove one of them",
                   config.checkpoint.resume);
  }
  if (o.print_config) {
    if (world.leader()) std::printf("%s", te::config::to_yaml(config, provenance).c_str());
    return 0;
  }
  te::init_log(world.leader() ? te::log_level(o.level) : te::LogLevel::error);
  if (plan.chosen()) {
    if (!world.leader()) return 0;
    const std::string report = plan.run(config, world);
    for (const std::string& line : te::train::missing_decoder_files(config)) print_tables(line + "\n");
    print_tables(report);
    return 0;
  }
  if (!o.show.dry_run && !o.show.schedule)
    return train_under_signals(
        config, world,
        {fmt::format("{}", fmt::join(o.configs, " + ")), provenance, o.overwrite, o.show.verbose});
  if (world.leader()) show_plan(config, world, o.show);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::parallel::run_job("te-train", te::apps::checked_output<body, te::parallel::World>, argc, argv);
}
