// Runs an experiment: as many runs at a time as there are slots, each resumed where it stopped, none repeated.
#pragma once

#include <sys/types.h>

#include <chrono>
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
  int64_t failures = 0;  ///< of this call
  bool locked = false;   ///< another process writes into its folder
  // While it runs.
  pid_t process = 0;
  size_t slot = 0;
  std::chrono::steady_clock::time_point started, first_seen;
  int64_t first_step = -1;  ///< at first_seen
  /// Nothing is left to do in this call.
  bool settled() const {
    return state.stage == Stage::finished || state.stage == Stage::failed || state.stage == Stage::diverged;
  }
};

class Runner {
 public:
  /// Makes the folders; UserError when one was begun with other settings.
  Runner(const Experiment& experiment, std::vector<Run> runs, std::vector<Slot> slots, std::string te_train);
  /// Until all runs are settled, or a signal has come and all have stopped. `changed` is called whenever a run has ended.
  void run(const std::function<void()>& changed);
  const std::vector<Item>& items() const { return items_; }
  bool interrupted() const { return stopping_; }

 private:
  void start_runs();
  void start(Item& item, size_t slot);
  bool collect();
  void ended(Item& item, const Ending& ending);
  void stop();
  size_t active() const;
  std::vector<Row> rows();
  std::optional<double> run_eta(const Item& item) const;
  std::optional<double> total_eta() const;

  const Experiment& experiment_;
  std::vector<Item> items_;
  std::vector<Slot> slots_;
  std::vector<bool> busy_;
  std::string te_train_;
  Display display_;
  bool stopping_ = false;
};

/// The command of a run in a slot.
Command command_of(const Run& run, const Slot& slot, const std::string& te_train);

/// The error that a run's console log ends with, or nothing.
std::string last_error(const Run& run);

}  // namespace te::experiment
