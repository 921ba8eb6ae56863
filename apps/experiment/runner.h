// Runs an experiment: one run per slot at a time. Runs resume where they stopped, finished runs are not repeated, and
// each finished run is evaluated.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiment/display.h"
#include "experiment/plan.h"
#include "experiment/process.h"
#include "experiment/run_state.h"

namespace te::experiment {

struct Item {
  Run run;
  RunState state;
  RunProgress progress;
  int64_t failures = 0;   ///< in this call of te-experiment
  bool locked = false;    ///< another process writes into its folder
  bool evaluate = false;  ///< evaluate it after it has finished
  // While it runs.
  pid_t process = 0;
  bool evaluating = false;  ///< `process` is te-generate's
  size_t slot = 0;
  double started = 0, first_seen = 0;  ///< by now_seconds()
  int64_t first_step = -1;             ///< at first_seen
  bool awaits_evaluation() const {
    return evaluate && state.stage == Stage::finished && state.evaluation.stage == Stage::waiting;
  }
  /// Whether nothing is left to do in this call.
  bool finished() const {
    if (state.stage == Stage::failed || state.stage == Stage::diverged) return true;
    return state.stage == Stage::finished && process == 0 && !awaits_evaluation();
  }
  bool complete() const {
    return state.stage == Stage::finished && (!evaluate || state.evaluation.stage == Stage::finished);
  }
};

/// The executables that are started.
struct Programs {
  std::string te_train, te_generate;
};

class Runner {
 public:
  /// Creates the folders; UserError if one was started with other settings.
  Runner(const Experiment& experiment, std::vector<Run> runs, std::vector<Slot> slots, Programs programs);
  /// Returns when all runs are done, or after a signal when all have stopped. `changed` is called when a run or an
  /// evaluation ends.
  void run(const std::function<void()>& changed);
  const std::vector<Item>& items() const { return items_; }
  bool interrupted() const { return stopping_; }

 private:
  void start_runs();
  template <class Waits, class Start>
  void start_waiting(Waits waits, Start start);
  bool can_start(const Item& item) const;
  bool fail_branches_without_start();
  std::optional<FolderLock> lock(Item& item);
  void start(Item& item, size_t slot);
  void start_evaluation(Item& item, size_t slot);
  bool collect();
  void ended(Item& item, const ExitStatus& exit_status);
  void evaluated(Item& item, const ExitStatus& exit_status);
  void stop();
  size_t active() const;
  std::vector<Row> rows();
  std::string row_state(const Item& item) const;
  std::optional<double> run_eta(const Item& item) const;
  std::optional<double> total_eta() const;

  const Experiment& experiment_;
  std::vector<Item> items_;
  std::vector<Slot> slots_;
  std::vector<bool> busy_;
  Programs programs_;
  Display display_;
  bool stopping_ = false;
};

/// The command of a run in a slot.
Command command_of(const Run& run, const Slot& slot, const std::string& te_train);

/// The last error in a log of a run's folder; empty if there is none.
std::string last_error(const Run& run, const char* log = "console.log");

}  // namespace te::experiment
