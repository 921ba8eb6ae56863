// A run of te-train: startup, then the loop (training_loop.h). Startup checks data, folders and memory before it
// allocates, so that mistakes show at once:
//
//   batches.h       datasets of the run               run_folder.h   locks and earlier runs
//   memory_check.h  whether the plan fits             startup.h      initial weights and state
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "config/config.h"
#include "parallel/world.h"
#include "train/batch_reader.h"
#include "train/batches.h"
#include "train/best_checkpoints.h"
#include "train/checkpoint_manager.h"
#include "train/run_folder.h"
#include "train/run_record.h"
#include "train/samples.h"
#include "train/signals.h"
#include "train/startup.h"
#include "train/step_runner.h"
#include "train/task_results.h"
#include "train/training_loop.h"

namespace te::train {

class Trainer {
 public:
  /// Plans all memory and allocates none. World and groups must outlive the trainer. With `overwrite` an earlier run in
  /// the same folders is removed; otherwise a run that would overwrite it is refused.
  Trainer(const config::Config& config, Context& context, parallel::World& world,
          const parallel::Groups& groups, bool overwrite);

  /// Call before run(): generates texts every logging.generate_every steps. Its memory becomes part of the plan.
  void make_samples_with(std::unique_ptr<SampleMaker> maker);

  /// Call before run(): evaluates on tasks every evaluation.every steps. Its memory becomes part of the plan.
  void set_evaluator(std::unique_ptr<Evaluator> evaluator);

  const MemoryPlan& plan() const { return runner_.plan(); }
  model::ModelStage& model() { return runner_.model(); }

  /// Opens the data, allocates, initializes or resumes, and trains as TrainingLoop::run() describes. Calls `record` on
  /// rank 0 before the first step.
  using Record = std::function<void(const RunInputs& inputs)>;
  Outcome run(Requests& requests, const Record& record = {});

 private:
  // The phases of startup, in order.
  void open_data();
  void lock_folders();
  void check_shared_folder();
  void find_gpu();
  void allocate();
  std::unique_ptr<checkpoint::Saver> make_saver();
  void prepare_folders(StartPoint& start, const Record& record);
  void check_base_is_elsewhere() const;
  std::map<std::string, std::string> contents(const StartPoint& start) const;
  /// Of a run that has no step left.
  Outcome end_of(checkpoint::Progress& progress) const;
  bool saves_periodically() const {
    return config_.checkpoint.save_every > 0 || config_.checkpoint.keep_best > 0;
  }
  bool saves() const { return saves_periodically() || config_.checkpoint.save_last; }

  config::Config config_;
  Context& context_;
  parallel::World& world_;
  const bool overwrite_;
  StepRunner runner_;
  std::unique_ptr<Batches> batches_;
  std::vector<checkpoint::Dataset> datasets_;  // the datasets in use; the first rank of each host
  std::optional<checkpoint::Base> base_;       ///< of the run's adapter
  std::optional<BatchReader> reader_;
  std::optional<RunFolder> folder_;  ///< rank 0
  std::optional<CheckpointManager> checkpoint_manager_;
  BestCheckpoints best_checkpoints_;
  std::optional<GpuModel> gpu_;  ///< of the context's GPU; empty if its rates are unknown
  std::unique_ptr<SampleMaker> sample_maker_;
  std::unique_ptr<Evaluator> evaluator_;
};

}  // namespace te::train
