#include "experiment/runner.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "common/command_line.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/printable.h"
#include "core/strings.h"
#include "experiment/evaluation.h"

namespace te::experiment {
namespace {

constexpr int kRefused = 2, kDiverged = 3,
              kNoProgram = 127;  // exit codes of te-train, and of a shell that finds no program

// A run that ended after te-experiment was killed. It would resume from its last checkpoint and have nothing to do, or
// start again if it saves none.
void take_unseen_end(Item& item) {
  item.state.stage = read_end(item.run);
  if (!item.finished()) return;
  item.state.exit_code = item.state.stage == Stage::diverged ? kDiverged : 0;
  item.state.process = 0;
  write_state(item.run, item.state);
}

// Requests an evaluation unless one with the same arguments is done and its files exist. Results of other arguments are
// removed: if the evaluation fails or is stopped, the report would compare them with new ones.
void request_evaluation(Item& item, const Evaluation& evaluation) {
  const std::string request = request_text(evaluation);
  EvaluationState& state = item.state.evaluation;
  item.evaluate = true;
  if (state.stage == Stage::finished && state.request == request && has_results(item.run)) return;
  remove_results(item.run);
  state = {Stage::waiting, request, 0, ""};
}

// The step of the newest checkpoint, from which te-train resumes; `latest` contains its name, such as step_00000020. 0
// if there is none.
int64_t saved_step(const Run& run) {
  constexpr uint64_t kMaxBytes = 4096;
  const std::string name =
      read_file(std::filesystem::path(run.config.checkpoint.directory) / "latest", kMaxBytes).text;
  const size_t digits = name.rfind('_');
  return digits == std::string::npos ? 0 : std::strtoll(name.c_str() + digits + 1, nullptr, 10);
}

}  // namespace

Command command_of(const Run& run, const Slot& slot, const std::string& te_train) {
  Command command{slot.launcher, slot.environment};
  command.words.insert(command.words.end(), {te_train, "--config", (run.folder / "config.yaml").string()});
  if (slot.needs_gpus(run)) command.words.insert(command.words.end(), {"--set", "training.device=cuda"});
  // A branch starts from another run's checkpoint until it has its own.
  if (!run.start.empty() && saved_step(run) == 0)
    command.words.insert(command.words.end(), {"--set", "checkpoint.resume=" + run.start.string()});
  return command;
}

std::string last_error(const Run& run, const char* log) {
  std::istringstream lines(read_file(run.folder / log, kAnySize).text);
  std::string found;
  for (std::string line; std::getline(lines, line);)
    if (line.find("error: ") != std::string::npos) found = line;
  return printable(found);
}

Runner::Runner(const Experiment& experiment, std::vector<Run> runs, std::vector<Slot> slots,
               Programs programs)
    : experiment_(experiment),
      slots_(std::move(slots)),
      busy_(slots_.size(), false),
      programs_(std::move(programs)),
      display_(experiment.name) {
  for (Run& run : runs) {
    prepare_folder(run);
    Item item;
    item.state = read_state(run);
    item.progress = read_progress(run);
    item.run = std::move(run);
    if (item.state.stage == Stage::failed || item.state.stage == Stage::interrupted)
      item.state.stage = Stage::waiting;
    if (item.state.stage == Stage::running) take_unseen_end(item);
    if (experiment.evaluation) request_evaluation(item, *experiment.evaluation);
    items_.push_back(std::move(item));
  }
}

size_t Runner::active() const {
  return static_cast<size_t>(std::ranges::count(busy_, true));
}

void Runner::run(const std::function<void()>& changed) {
  while (true) {
    if (apps::interrupted() && !stopping_) stop();
    if (collect()) changed();
    if (!stopping_ && fail_branches_without_start()) changed();
    if (!stopping_) start_runs();
    const bool all_done = std::ranges::all_of(items_, [](const Item& item) { return item.finished(); });
    if (active() == 0 && (stopping_ || all_done)) break;
    display_.update(rows(), total_eta());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (Item& item : items_) item.progress = read_progress(item.run);
  changed();
  display_.finish(rows());
}

// A checkpoint's folder gets its name when it is complete, so that a branch can start while its parent still runs.
bool Runner::can_start(const Item& item) const {
  if (item.state.stage != Stage::waiting) return false;
  std::error_code ignored;
  return item.run.start.empty() || saved_step(item.run) > 0 ||
         std::filesystem::exists(item.run.start, ignored);
}

// Branches whose parent has ended without the checkpoint that they start from cannot run. Returns whether one failed.
bool Runner::fail_branches_without_start() {
  bool any = false;
  for (Item& item : items_) {
    if (item.state.stage != Stage::waiting || can_start(item)) continue;
    const auto parent =
        std::ranges::find_if(items_, [&](const Item& other) { return other.run.name == item.run.parent; });
    if (!parent->finished()) continue;
    item.state.stage = Stage::failed;
    item.state.reason = fmt::format("{} ({}) has no checkpoint of step {}", parent->run.name,
                                    to_string(parent->state.stage), item.run.parent_step);
    write_state(item.run, item.state);
    display_.event(fmt::format("{}: failed: {}", item.run.name, item.state.reason));
    any = true;
  }
  return any;
}

template <class Waits, class Start>
void Runner::start_waiting(Waits waits, Start start) {
  for (Item& item : items_) {
    if (item.process != 0 || !waits(item)) continue;
    const auto free = std::ranges::find(busy_, false);
    if (free == busy_.end()) return;
    (this->*start)(item, static_cast<size_t>(free - busy_.begin()));
  }
}

// Evaluations start first: they are short, and give early results of finished runs.
void Runner::start_runs() {
  start_waiting([](const Item& item) { return item.awaits_evaluation(); }, &Runner::start_evaluation);
  start_waiting([this](const Item& item) { return can_start(item); }, &Runner::start);
}

std::optional<FolderLock> Runner::lock(Item& item) {
  std::optional<FolderLock> lock = FolderLock::acquire(item.run.folder);
  if (!lock && !item.locked)
    display_.event(fmt::format("{}: another process is still writing to {}; waiting for it", item.run.name,
                               item.run.folder.string()));
  item.locked = !lock;
  return lock;
}

void Runner::start(Item& item, size_t slot) {
  const std::optional<FolderLock> lock = this->lock(item);
  if (!lock) return;
  item.progress = read_progress(item.run);
  const Command command = command_of(item.run, slots_[slot], programs_.te_train);
  item.process = start_process(command, item.run.folder / "console.log", *lock);
  item.slot = slot;
  item.started = now_seconds();
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

void Runner::start_evaluation(Item& item, size_t slot) {
  const std::optional<FolderLock> lock = this->lock(item);
  if (!lock) return;
  const std::filesystem::path log = item.run.folder / kEvaluationLogName;
  std::error_code ignored;
  std::filesystem::remove(log, ignored);  // it would show the progress of an earlier attempt
  const Command command =
      evaluation_command(*experiment_.evaluation, item.run, slots_[slot], programs_.te_generate);
  item.process = start_process(command, log, *lock);
  item.evaluating = true;
  item.slot = slot;
  item.started = now_seconds();
  busy_[slot] = true;
  item.state.evaluation.stage = Stage::running;
  item.state.evaluation.reason.clear();
  item.state.process = item.process;
  write_state(item.run, item.state);
  display_.event(fmt::format("{}: evaluation started on {}", item.run.name, slots_[slot].name));
}

// Returns whether a run or an evaluation has ended.
bool Runner::collect() {
  bool any = false;
  for (Item& item : items_) {
    if (item.process == 0) continue;
    if (const std::optional<ExitStatus> exit_status = poll_process(item.process)) {
      (this->*(item.evaluating ? &Runner::evaluated : &Runner::ended))(item, *exit_status);
      any = true;
    }
  }
  return any;
}

void Runner::ended(Item& item, const ExitStatus& exit_status) {
  busy_[item.slot] = false;
  item.process = 0;
  item.state.process = 0;
  item.state.exit_code = exit_status.exit_code;
  item.state.seconds += now_seconds() - item.started;
  item.progress = read_progress(item.run);
  const bool for_good = exit_status.exit_code == kRefused || exit_status.exit_code == kNoProgram;
  std::string what;
  if (exit_status.exit_code == 0) {
    item.state.stage = Stage::finished;
    what = fmt::format("finished in {}", human_time(item.state.seconds));
  } else if (exit_status.exit_code == kDiverged) {
    item.state.stage = Stage::diverged;
    what = fmt::format("diverged at step {}", item.progress.step);
  } else if (stopping_) {
    item.state.stage = Stage::interrupted;
    what = fmt::format("stopped after step {}", item.progress.step);
  } else if (!for_good && item.failures < experiment_.retries) {
    item.failures += 1;
    item.state.stage = Stage::waiting;
    what = fmt::format("{}; retry {} of {}", exit_status.text(), item.failures, experiment_.retries);
  } else {
    item.state.stage = Stage::failed;
    const std::string error = last_error(item.run);
    item.state.reason = error.empty() ? exit_status.text() : error;
    what = fmt::format("failed: {} (see {})", item.state.reason, (item.run.folder / "console.log").string());
  }
  write_state(item.run, item.state);
  display_.event(fmt::format("{}: {}", item.run.name, what));
}

void Runner::evaluated(Item& item, const ExitStatus& exit_status) {
  EvaluationState& evaluation = item.state.evaluation;
  busy_[item.slot] = false;
  item.process = 0;
  item.evaluating = false;
  item.state.process = 0;
  evaluation.seconds += now_seconds() - item.started;
  const bool for_good = exit_status.exit_code == kRefused || exit_status.exit_code == kNoProgram;
  const std::string log = (item.run.folder / kEvaluationLogName).string();
  std::string what;
  if (exit_status.exit_code == 0 && has_results(item.run)) {
    evaluation.stage = Stage::finished;
    what = fmt::format("evaluated in {}: {}", human_time(evaluation.seconds), results_text(item.run));
  } else if (stopping_) {
    evaluation.stage = Stage::waiting;
    what = "evaluation stopped";
  } else if (!for_good && item.failures < experiment_.retries) {
    item.failures += 1;
    evaluation.stage = Stage::waiting;
    what =
        fmt::format("evaluation: {}; retry {} of {}", exit_status.text(), item.failures, experiment_.retries);
  } else {
    evaluation.stage = Stage::failed;
    const std::string error = last_error(item.run, kEvaluationLogName);
    evaluation.reason = error.empty() ? exit_status.text() : error;
    what = fmt::format("evaluation failed: {} (see {})", evaluation.reason, log);
  }
  write_state(item.run, item.state);
  display_.event(fmt::format("{}: {}", item.run.name, what));
}

// te-train finishes its step and saves. An interrupted evaluation starts again in the next call.
void Runner::stop() {
  stopping_ = true;
  display_.event(active() > 0 ? "stopping: waiting for the runs to save; a second Ctrl-C does not wait"
                              : "stopping");
  for (const Item& item : items_)
    if (item.process != 0)
      ask_to_stop(item.process, item.evaluating ? programs_.te_generate : programs_.te_train);
}

std::vector<Row> Runner::rows() {
  std::vector<Row> rows;
  for (Item& item : items_) {
    Row row;
    row.running = item.process != 0;
    if (row.running && !item.evaluating) {
      item.progress = read_progress(item.run);
      if (item.first_step < 0 && item.progress.step > 0) {
        item.first_step = item.progress.step;
        item.first_seen = now_seconds();
      }
    }
    row.name = item.run.name;
    row.state = row_state(item);
    row.steps = item.run.config.training.train_steps;
    row.progress = item.progress;
    if (row.running && !item.evaluating) row.eta_seconds = run_eta(item);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Runner::row_state(const Item& item) const {
  if (item.evaluating) {
    const std::string progress = evaluation_progress(item.run);
    return "evaluating" + (progress.empty() ? "" : ": " + progress);
  }
  if (item.process != 0) return slots_[item.slot].name;
  if (item.locked) return "locked";
  if (item.evaluate && item.state.stage == Stage::finished && item.state.evaluation.stage == Stage::failed)
    return kNotEvaluated;
  return std::string(to_string(item.state.stage));
}

// From the steps of this attempt so far, including validation and saving; at first from the time of the last step.
std::optional<double> Runner::run_eta(const Item& item) const {
  const int64_t left = item.run.config.training.train_steps - item.progress.step;
  const int64_t done = item.first_step < 0 ? 0 : item.progress.step - item.first_step;
  if (done > 0)
    return (now_seconds() - item.first_seen) / static_cast<double>(done) * static_cast<double>(left);
  if (item.progress.step_ms > 0) return item.progress.step_ms / 1e3 * static_cast<double>(left);
  return std::nullopt;
}

// Runs without an estimate count with the mean of the others.
std::optional<double> Runner::total_eta() const {
  double known = 0, left = 0, longest = 0;
  int64_t measured = 0, unknown = 0;
  for (const Item& item : items_) {
    const std::optional<double> eta = item.process != 0 && !item.evaluating ? run_eta(item) : std::nullopt;
    if (item.state.stage == Stage::finished && item.state.seconds > 0) {
      known += item.state.seconds;
      measured += 1;
    } else if (eta) {
      known += item.state.seconds + now_seconds() - item.started + *eta;
      measured += 1;
      left += *eta;
      longest = std::max(longest, *eta);
    } else if (!item.finished()) {
      unknown += 1;
    }
  }
  if (measured == 0) return std::nullopt;
  const double each = known / static_cast<double>(measured);
  return std::max(longest, (left + each * static_cast<double>(unknown)) / static_cast<double>(slots_.size()));
}

}  // namespace te::experiment
