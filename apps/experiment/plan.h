// An experiment's file: a base config, variants, seeds, and where the runs take place; and the runs that come of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::experiment {

struct Variant {
  std::string name;
  std::vector<std::string> overrides;  ///< "key=value"
  std::vector<int64_t> seeds;
  std::string baseline;  ///< the variant that the report compares it with; empty: the experiment's
};

/// Where runs take place: side by side on GPUs or on the CPU, each of one rank or of several.
struct RunOn {
  std::vector<int> gpus;     ///< ids, `ranks` of them for each run; empty: all that there are, or the CPU
  int64_t runs_per_gpu = 1;  ///< at a time
  int64_t cpu = 0;           ///< so many runs side by side on the CPU; 0: not on the CPU
  int64_t ranks = 1;         ///< of a run; above 1 through `launcher`
  std::vector<std::string> launcher;  ///< mpirun and its options, without -n
};

/// How large a gap may be to count as none; both limits hold. For the report.
struct Bar {
  double nats = 0.01, percent = 0.25;
  std::vector<std::string> given;  ///< which of them the experiment's file sets
};

/// What each run's final checkpoint is judged by: arguments of te-generate evaluate.
struct Evaluation {
  std::vector<std::string> tasks;
  std::string data;                  ///< folder of the tasks' data
  int64_t limit = 0;                 ///< documents of each task; 0: all
  std::vector<std::string> options;  ///< further ones, such as [--fp8, hybrid]
};

struct Experiment {
  std::string name;                 ///< stem of the file
  std::filesystem::path file;       ///< the experiment's
  std::string base;                 ///< the config of all runs
  std::filesystem::path directory;  ///< a folder for each run, and summary.json
  std::vector<std::string> overrides;
  std::vector<Variant> variants;
  std::string baseline;  ///< a variant
  RunOn run_on;
  int64_t retries = 2;  ///< of a run that is killed or fails
  Bar bar;
  std::optional<Evaluation> evaluation;  ///< none asked for
};

/// UserError, one line with the file and the key, on any mistake.
Experiment load_experiment(const std::filesystem::path& file);

/// One run: a variant under a seed.
struct Run {
  std::string name;  ///< VARIANT_seedN
  std::string variant;
  int64_t seed = 0;
  std::filesystem::path folder;
  config::Config config;  ///< effective
};

/// Every run, seed by seed, so that pairs are complete early. Each config is loaded and checked: UserError names the
/// variant.
std::vector<Run> plan_runs(const Experiment& experiment);

/// What a run needs to start: which devices, and the command's front.
struct Slot {
  std::string name;  ///< "GPU 0", "GPUs 0,1", "CPU"
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> launcher;  ///< before te-train; empty for one rank
};

/// Places at which a run can take place at a time; at least one. Runs on GPUs share a file of GEMM algorithms in the
/// experiment's directory (kernels/gemm/gemm_cache.h), unless TE_GEMM_CACHE names a folder: another algorithm rounds
/// otherwise, and pairs would differ by more than their variants. UserError when GPUs and ranks do not fit.
std::vector<Slot> make_slots(const Experiment& experiment, int hardware_threads);

}  // namespace te::experiment
