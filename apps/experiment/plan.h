// An experiment's file (base config, variants, seeds, and devices), and the runs that follow from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::experiment {

/// The checkpoint that a variant's runs start from: that of the run of another variant with the same seed. One run with
/// a constant learning rate, and short decays that branch off, give several training lengths for little more than the
/// price of the longest.
struct Branch {
  std::string variant;
  int64_t step = 0;
};

struct Variant {
  std::string name;
  std::vector<std::string> overrides;  ///< "key=value"
  std::vector<int64_t> seeds;
  std::string baseline;  ///< the variant that the report compares it with; empty: the experiment's
  std::optional<Branch>
      branch;  ///< its overrides follow those of the branch's variant; empty: starts at step 1
};

/// Devices of the runs: several runs in parallel on GPUs or on the CPU, each with one or more ranks.
struct RunOn {
  std::vector<int> gpus;              ///< ids, `ranks` of them for each run; empty: all GPUs, or the CPU
  int64_t runs_per_gpu = 1;           ///< concurrent runs per GPU
  int64_t cpu = 0;                    ///< concurrent runs on the CPU; 0: not on the CPU
  int64_t ranks = 1;                  ///< per run; more than 1 with `launcher`
  std::vector<std::string> launcher;  ///< mpirun and its options, without -n
};

/// The tolerance: the largest gap that counts as equal. Both limits must hold. For the report.
struct Tolerance {
  double nats = 0.01, percent = 0.25;
  std::vector<std::string> given;  ///< limits that the experiment's file sets
};

/// Evaluation of each run's final checkpoint: arguments of te-generate evaluate.
struct Evaluation {
  std::vector<std::string> tasks;
  std::string data;                  ///< folder of the tasks' data
  int64_t limit = 0;                 ///< documents of each task; 0: all
  std::vector<std::string> options;  ///< further options, such as [--fp8, hybrid]
};

struct Experiment {
  std::string name;                 ///< stem of the file
  std::filesystem::path file;       ///< the experiment's file
  std::string base;                 ///< the config of all runs
  std::filesystem::path directory;  ///< contains a folder for each run, and summary.json
  std::vector<std::string> overrides;
  std::vector<Variant> variants;
  std::string baseline;  ///< a variant
  RunOn run_on;
  int64_t retries = 2;  ///< for a run that is killed or fails
  Tolerance tolerance;
  std::optional<Evaluation> evaluation;  ///< empty: no evaluation
};

/// Throws UserError, one line with the file and the key, for any mistake.
Experiment load_experiment(const std::filesystem::path& file);

/// One run: a variant with a seed.
struct Run {
  std::string name;  ///< VARIANT_seedN
  std::string variant;
  int64_t seed = 0;
  std::filesystem::path folder;
  config::Config config;  ///< effective
  std::string parent;  ///< name of the run whose checkpoint of step `parent_step` it starts from; empty: none
  int64_t parent_step = 0;
  std::filesystem::path start;  ///< that checkpoint
};

/// All runs, ordered by seed, so that seed pairs are complete early. Loads and checks each config; UserError names the
/// variant.
std::vector<Run> plan_runs(const Experiment& experiment);

/// A place for one run at a time: its devices, and the beginning of its command.
struct Slot {
  std::string name;  ///< "GPU 0", "GPUs 0,1", "CPU"
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> launcher;  ///< before te-train; empty for one rank
  bool gpus = false;                  ///< of run_on.gpus
  /// Whether the run must not fall back to the CPU without its GPUs.
  bool needs_gpus(const Run& run) const {
    return gpus && run.config.training.device == config::DeviceChoice::automatic;
  }
};

/// The slots for concurrent runs; at least one. Runs on GPUs share a cache of GEMM algorithms in the experiment's
/// directory (kernels/gemm/gemm_cache.h), unless TE_GEMM_CACHE names a folder: other algorithms round differently, and
/// seed pairs would differ by more than their variants. UserError if the number of GPUs is not a multiple of the ranks.
std::vector<Slot> make_slots(const Experiment& experiment, int hardware_threads);

}  // namespace te::experiment
