// te-experiment: runs variants of a config with several seeds and makes a report (docs/reference/te-experiment.md). The
// implementation is in apps/experiment/.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "common/command_line.h"
#include "common/standard_output.h"
#include "core/error.h"
#include "experiment/evaluation.h"
#include "experiment/plan.h"
#include "experiment/process.h"
#include "experiment/runner.h"
#include "experiment/summary.h"

namespace {

namespace fs = std::filesystem;
using namespace te::experiment;

constexpr const char* kFooter = R"(Example: te-experiment configs/experiments/quickstart.yaml

Each run has its own folder in the experiment's directory. To resume, start te-experiment again: finished runs are not
repeated. Ctrl-C lets the runs save their state; a second Ctrl-C does not wait for that.

Exit codes: 0 all runs finished, 1 a run or an evaluation failed, or a run diverged, 2 wrong input, 130 interrupted.)";

// In this executable's folder, else on the PATH.
std::string default_program(const char* name) {
  std::error_code error;
  const fs::path sibling = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  return fs::exists(sibling) ? sibling.string() : name;
}

void print_plan(const Experiment& experiment, const std::vector<Run>& runs, const std::vector<Slot>& slots,
                const Programs& programs) {
  std::printf("%s: %zu runs, %zu at a time, in %s; baseline %s\n", experiment.name.c_str(), runs.size(),
              slots.size(), experiment.directory.c_str(), experiment.baseline.c_str());
  for (size_t i = 0; i < runs.size(); ++i) {
    const Slot& slot = slots[i % slots.size()];
    std::printf("%s (%s): %s\n", runs[i].name.c_str(),
                std::string(to_string(read_state(runs[i]).stage)).c_str(),
                shell_text(command_of(runs[i], slot, programs.te_train)).c_str());
  }
  if (experiment.evaluation)
    std::printf(
        "evaluation of each run, for example: %s\n",
        shell_text(evaluation_command(*experiment.evaluation, runs[0], slots[0], programs.te_generate))
            .c_str());
  for (const Variant& variant : experiment.variants) {
    std::string text;
    for (const std::string& item : variant.overrides) text += " " + item;
    std::printf("variant %s:%s\n", variant.name.c_str(), text.empty() ? " same as the base" : text.c_str());
  }
}

int run_experiment(const std::string& file, Programs programs, bool dry_run, bool report) {
  const Experiment experiment = load_experiment(file);
  std::vector<Run> runs = plan_runs(experiment);
  std::vector<Slot> slots = make_slots(experiment, static_cast<int>(std::thread::hardware_concurrency()));
  if (programs.te_train.empty()) programs.te_train = default_program("te-train");
  if (programs.te_generate.empty()) programs.te_generate = default_program("te-generate");
  if (dry_run) {
    print_plan(experiment, runs, slots, programs);
    return 0;
  }
  // Checked before the runs start, not after the first has finished.
  if (experiment.evaluation && !fs::is_directory(experiment.evaluation->data))
    te::user_error(
        "{}: evaluate: data: {} is not a folder; name the folder with the tasks' data "
        "(docs/how-to/evaluate.md)",
        file, experiment.evaluation->data);
  std::error_code error;
  fs::create_directories(experiment.directory, error);
  if (error) te::user_error("directory: {}: {}", experiment.directory.string(), error.message());
  const std::optional<FolderLock> lock = FolderLock::acquire(experiment.directory);
  if (!lock)
    te::user_error("directory: another te-experiment is running in {}; wait for it, or set another directory",
                   experiment.directory.string());
  te::apps::catch_interrupts();
  std::signal(SIGPIPE, SIG_IGN);  // a reader of the output that ends does not end the runs
  Runner runner(experiment, std::move(runs), std::move(slots), std::move(programs));
  runner.run([&] { write_summary(experiment, runner.items()); });
  if (runner.interrupted()) {
    std::printf("interrupted; run the same command to resume\n");
    te::apps::allow_lost_output("te-experiment");
    return 130;
  }
  if (report && can_report(experiment, runner.items()))
    make_report(experiment);
  else if (report)
    std::printf("no report: it needs a finished run of the baseline %s and one of another variant\n",
                experiment.baseline.c_str());
  te::apps::allow_lost_output("te-experiment");
  for (const Item& item : runner.items())
    if (!item.complete()) return 1;
  return 0;
}

int body(int argc, char** argv) {
  CLI::App app("te-experiment: runs variants of a config with several seeds in parallel and makes a report",
               "te-experiment");
  app.footer(kFooter);
  std::string file;
  Programs programs;
  bool dry_run = false, no_report = false;
  app.add_option("file", file, "YAML file of the experiment (docs/reference/te-experiment.md)")
      ->type_name("FILE");
  app.add_flag("--dry-run", dry_run,
               "Check the file and every config (not the data), print the runs, and stop");
  app.add_flag("--no-report", no_report, "Make no report");
  app.add_option("--te-train", programs.te_train, "te-train executable (default: next to te-experiment)")
      ->type_name("PROGRAM");
  app.add_option("--te-generate", programs.te_generate,
                 "te-generate executable for evaluations (default: next to te-experiment)")
      ->type_name("PROGRAM");
  if (!te::apps::parse_command_line(app, argc, argv)) return 0;
  if (file.empty()) te::user_error("FILE is required; see te-experiment --help and configs/experiments/");
  return run_experiment(file, std::move(programs), dry_run, !no_report);
}

}  // namespace

int main(int argc, char** argv) {
  te::apps::reserve_standard_streams();
  return te::run_main("te-experiment", te::apps::checked_output<body>, argc, argv);
}
