#include "experiment/runner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "common/command_line.h"
#include "core/error.h"

namespace te::experiment {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A run whose end nobody saw, as te-experiment was killed: te-train finds its last checkpoint and has nothing to do. One
// that saves none would begin anew.
bool has_finished_unseen(const Item& item) {
  return !item.run.config.checkpoint.save_last && item.progress.step >= item.run.config.training.train_steps;
}

// The step of the newest checkpoint, from which te-train goes on: `latest` names it, as in step_00000020. 0: none.
int64_t saved_step(const Run& run) {
  std::ifstream file(std::filesystem::path(run.config.checkpoint.directory) / "latest");
  std::string name;
  file >> name;
  const size_t digits = name.rfind('_');
  return digits == std::string::npos ? 0 : std::strtoll(name.c_str() + digits + 1, nullptr, 10);
}

}  // namespace

Command command_of(const Run& run, const Slot& slot, const std::string& te_train) {
  Command command{slot.launcher, slot.environment};
  command.words.insert(command.words.end(), {te_train, "--config", (run.folder / "config.yaml").string()});
  return command;
}

std::string last_error(const Run& run) {
  std::ifstream file(run.folder / "console.log");
  std::string found;
  for (std::string line; std::getline(file, line);)
    if (line.find("error: ") != std::string::npos) found = line;
  return found;
}

Runner::Runner(const Experiment& experiment, std::vector<Run> runs, std::vector<Slot> slots,
               std::string te_train)
    : experiment_(experiment),
      slots_(std::move(slots)),
      busy_(slots_.size(), false),
      te_train_(std::move(te_train)),
      display_(experiment.name) {
  for (Run& run : runs) {
    prepare_folder(run);
    Item item;
    item.state = read_state(run);
    item.progress = read_progress(run);
    item.run = std::move(run);
    if (item.state.stage == Stage::failed || item.state.stage == Stage::interrupted)
      item.state.stage = Stage::waiting;
    if (item.state.stage == Stage::running)
      item.state.stage = has_finished_unseen(item) ? Stage::finished : Stage::waiting;
    items_.push_back(std::move(item));
  }
}

size_t Runner::active() const {
  return static_cast<size_t>(std::count(busy_.begin(), busy_.end(), true));
}

void Runner::run(const std::function<void()>& changed) {
  while (true) {
    if (apps::interrupted() && !stopping_) stop();
    if (collect()) changed();
    if (!stopping_) start_runs();
    const bool settled =
        std::all_of(items_.begin(), items_.end(), [](const Item& item) { return item.settled(); });
    if (active() == 0 && (stopping_ || settled)) break;
    display_.update(rows(), total_eta());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (Item& item : items_) item.progress = read_progress(item.run);
  changed();
  display_.finish(rows());
}

void Runner::start_runs() {
  for (Item& item : items_) {
    if (item.state.stage != Stage::waiting) continue;
    const auto free = std::find(busy_.begin(), busy_.end(), false);
    if (free == busy_.end()) return;
    start(item, static_cast<size_t>(free - busy_.begin()));
  }
}

void Runner::start(Item& item, size_t slot) {
  const std::optional<FolderLock> lock = FolderLock::take(item.run.folder);
  if (!lock) {
    if (!item.locked)
      display_.event(fmt::format("{}: another process still writes into {}; waiting for it", item.run.name,
                                 item.run.folder.string()));
    item.locked = true;
    return;
  }
  item.locked = false;
  item.progress = read_progress(item.run);
  const Command command = command_of(item.run, slots_[slot], te_train_);
  item.process = start_process(command, item.run.folder / "console.log", *lock);
  item.slot = slot;
  item.started = Clock::now();
  item.first_step = -1;
  busy_[slot] = true;
  item.state.stage = Stage::running;
  item.state.attempts += 1;
  item.state.process = item.process;
  item.state.reason.clear();
  write_state(item.run, item.state);
  const int64_t saved = saved_step(item.run);
  const std::string after = saved > 0 ? fmt::format(", after step {}", saved) : "";
  display_.event(fmt::format("{}: started on {}{}", item.run.name, slots_[slot].name, after));
}

// True when a run has ended.
bool Runner::collect() {
  bool any = false;
  for (Item& item : items_) {
    if (item.process == 0) continue;
    if (const std::optional<Ending> ending = poll_process(item.process)) {
      ended(item, *ending);
      any = true;
    }
  }
  return any;
}

void Runner::ended(Item& item, const Ending& ending) {
  constexpr int kRefused = 2, kDiverged = 3, kNoProgram = 127;
  busy_[item.slot] = false;
  item.process = 0;
  item.state.process = 0;
  item.state.exit_code = ending.exit_code;
  item.state.seconds += seconds_since(item.started);
  item.progress = read_progress(item.run);
  const bool for_good = ending.exit_code == kRefused || ending.exit_code == kNoProgram;
  std::string what;
  if (ending.exit_code == 0) {
    item.state.stage = Stage::finished;
    what = fmt::format("finished in {}", clock_text(item.state.seconds));
  } else if (ending.exit_code == kDiverged) {
    item.state.stage = Stage::diverged;
    what = fmt::format("diverged at step {}", item.progress.step);
  } else if (stopping_) {
    item.state.stage = Stage::interrupted;
    what = fmt::format("stopped after step {}", item.progress.step);
  } else if (!for_good && item.failures < experiment_.retries) {
    item.failures += 1;
    item.state.stage = Stage::waiting;
    what = fmt::format("{}; retry {} of {}", ending.text(), item.failures, experiment_.retries);
  } else {
    item.state.stage = Stage::failed;
    const std::string error = last_error(item.run);
    item.state.reason = error.empty() ? ending.text() : error;
    what = fmt::format("failed: {} (see {})", item.state.reason, (item.run.folder / "console.log").string());
  }
  write_state(item.run, item.state);
  display_.event(fmt::format("{}: {}", item.run.name, what));
}

// te-train finishes its step and saves.
void Runner::stop() {
  stopping_ = true;
  display_.event(active() > 0 ? "stopping: waiting for the runs to save; a second Ctrl-C does not wait"
                              : "stopping");
  for (const Item& item : items_)
    if (item.process != 0) ask_to_stop(item.process, te_train_);
}

std::vector<Row> Runner::rows() {
  std::vector<Row> rows;
  for (Item& item : items_) {
    Row row;
    row.running = item.process != 0;
    if (row.running) {
      item.progress = read_progress(item.run);
      if (item.first_step < 0 && item.progress.step > 0) {
        item.first_step = item.progress.step;
        item.first_seen = Clock::now();
      }
    }
    row.name = item.run.name;
    row.state = row.running   ? slots_[item.slot].name
                : item.locked ? "locked"
                              : std::string(to_string(item.state.stage));
    row.steps = item.run.config.training.train_steps;
    row.progress = item.progress;
    if (row.running) row.eta_seconds = run_eta(item);
    rows.push_back(std::move(row));
  }
  return rows;
}

// By the pace of this attempt, validation and saves included; by the last step's time before there is one.
std::optional<double> Runner::run_eta(const Item& item) const {
  const int64_t left = item.run.config.training.train_steps - item.progress.step;
  const int64_t done = item.first_step < 0 ? 0 : item.progress.step - item.first_step;
  if (done > 0) return seconds_since(item.first_seen) / static_cast<double>(done) * static_cast<double>(left);
  if (item.progress.step_ms > 0) return item.progress.step_ms / 1e3 * static_cast<double>(left);
  return std::nullopt;
}

// A run whose pace is not known yet is taken to last as long as the others on average.
std::optional<double> Runner::total_eta() const {
  double known = 0, left = 0, longest = 0;
  int64_t measured = 0, unknown = 0;
  for (const Item& item : items_) {
    const std::optional<double> eta = item.process != 0 ? run_eta(item) : std::nullopt;
    if (item.state.stage == Stage::finished && item.state.seconds > 0) {
      known += item.state.seconds;
      measured += 1;
    } else if (eta) {
      known += item.state.seconds + seconds_since(item.started) + *eta;
      measured += 1;
      left += *eta;
      longest = std::max(longest, *eta);
    } else if (!item.settled()) {
      unknown += 1;
    }
  }
  if (measured == 0) return std::nullopt;
  const double each = known / static_cast<double>(measured);
  return std::max(longest, (left + each * static_cast<double>(unknown)) / static_cast<double>(slots_.size()));
}

}  // namespace te::experiment
