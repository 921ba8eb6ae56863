#include "train/run_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "config/config.h"
#include "core/error.h"
#include "core/log.h"
#include "train/event_file.h"
#include "train/fp8_statistics.h"
#include "train/log_file.h"
#include "train/metrics.h"
#include "train/samples.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

// Called before training, which must not fail after hours because a folder cannot be written.
void make_writable(const char* key, const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error && ::access(directory.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (error)
    user_error("{}: {}: {}; choose a folder that can be written", key, directory.string(), error.message());
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

}  // namespace

RunFolder::RunFolder(RunFolderOptions options) : options_(std::move(options)) {
  make_writable("logging.directory", options_.logs);
  if (options_.saves) make_writable("checkpoint.directory", options_.checkpoints);
  locks_.emplace_back("logging.directory", options_.logs);
  // A separate lock, as two runs may log to different folders and save to the same one.
  if (options_.saves && !same_folder(options_.logs, options_.checkpoints))
    locks_.emplace_back("checkpoint.directory", options_.checkpoints);
}

std::vector<RunFolder::Log> RunFolder::logs() const {
  std::vector<Log> logs;
  logs.push_back({options_.logs / kCsvName, csv_step});
  logs.push_back({options_.logs / kJsonlName, json_step});
  logs.push_back({options_.logs / kSamplesName, json_step});
  logs.push_back({options_.logs / kFp8StatisticsName, json_step});
  return logs;
}

std::vector<fs::path> RunFolder::saved_checkpoints(int64_t after) const {
  std::vector<fs::path> saved;
  if (!options_.saves) return saved;
  for (const auto& [step, folder] : checkpoint::list_checkpoints(options_.checkpoints))
    if (step > after) saved.push_back(folder);
  return saved;
}

void RunFolder::refuse_earlier_run() const {
  std::string found;
  for (const Log& log : logs()) {
    if (const int64_t step = last_logged_step(log.path, log.step_of); step > 0)
      found += fmt::format("{}{} up to step {}", found.empty() ? "" : ", ", log.path.string(), step);
  }
  const bool logged = !found.empty();
  const std::vector<fs::path> saved = saved_checkpoints(0);
  if (!saved.empty()) found += fmt::format("{}{}", logged ? ", " : "", saved.back().string());
  if (found.empty()) return;
  const fs::path& checkpoints = options_.checkpoints;
  if (const std::string other = other_run(); !other.empty())
    user_error(
        "checkpoint.directory: {}: holds checkpoints of the run that logs to {} ({}): choose another "
        "checkpoint.directory, or continue that run with --set checkpoint.resume=auto",
        checkpoints.string(), other, found);
  const bool separate = !saved.empty() && has_own_checkpoint_directory();
  user_error(
      "{}: holds an earlier run ({}): resume it with --set checkpoint.resume=auto, replace it with "
      "--overwrite, or choose another {}",
      (separate && !logged ? checkpoints : options_.logs).string(), found,
      !separate ? "logging.directory"
      : logged  ? "logging.directory and checkpoint.directory"
                : "checkpoint.directory");
}

bool RunFolder::has_own_checkpoint_directory() const {
  std::error_code ignored;
  const fs::path logs = fs::weakly_canonical(options_.logs, ignored),
                 inside = fs::weakly_canonical(options_.checkpoints, ignored).lexically_relative(logs);
  return inside.empty() || *inside.begin() == "..";
}

std::string RunFolder::other_run() const {
  if (!options_.saves || !has_own_checkpoint_directory()) return "";
  std::error_code ignored;
  const fs::path own = fs::weakly_canonical(options_.logs, ignored);
  for (const fs::path& folder : saved_checkpoints(0)) {
    try {
      const std::string logs = config::string_in(checkpoint::Reader(folder).config(), "logging.directory");
      if (!logs.empty() && fs::weakly_canonical(logs, ignored) != own) return logs;
    } catch (const UserError&) {  // damaged checkpoints are reported when they are read
    }
  }
  return "";
}

void RunFolder::refuse_other_run() const {
  const std::string other = other_run();
  if (other.empty()) return;
  user_error(
      "checkpoint.directory: {}: holds checkpoints of the run that logs to {}; --overwrite removes only "
      "those of this run, which logs to {}: choose another checkpoint.directory, or remove them yourself",
      options_.checkpoints.string(), other, options_.logs.string());
}

void RunFolder::warn_of_other_run() const {
  const std::string other = other_run();
  if (other.empty()) return;
  log_warning(
      "checkpoint.resume auto: this run, which logs to {}, continues the run that logs to {}: "
      "checkpoint.directory ({}) holds that run's checkpoints, and this run saves there",
      options_.logs.string(), other, options_.checkpoints.string());
}

void RunFolder::remove_earlier_run(const std::vector<fs::path>& sources) const {
  std::vector<fs::path> checkpoints = saved_checkpoints(0);
  std::erase_if(checkpoints, [&](const fs::path& folder) {
    return std::ranges::any_of(sources, [&](const fs::path& source) { return same_folder(folder, source); });
  });
  for (const fs::path& folder : checkpoints)
    if (!checkpoint::is_removable(folder))
      user_error("--overwrite: {}: cannot be removed: it is write-protected; nothing was removed",
                 folder.string());
  int64_t steps = 0;
  for (const Log& log : logs()) {
    steps = std::max(steps, last_logged_step(log.path, log.step_of));
    fs::remove(log.path);
  }
  for (const fs::path& file : event_files(options_.logs)) fs::remove(file);
  for (const fs::path& folder : checkpoints) checkpoint::remove_checkpoint(folder);
  const auto removed = static_cast<int64_t>(checkpoints.size());
  if (removed > 0) {
    fs::remove(options_.checkpoints / "latest");
    fs::remove(options_.checkpoints / "best");
  }
  if (steps > 0 || removed > 0) {
    log_warning("--overwrite: removed an earlier run from {}: its logs of {} steps and {} checkpoints{}",
                options_.logs.string(), steps, removed,
                removed > 0 && has_own_checkpoint_directory() ? " of " + options_.checkpoints.string() : "");
  }
}

void RunFolder::rotate_logs() const {
  for (const Log& log : logs()) {
    const int64_t step = last_logged_step(log.path, log.step_of);
    if (step == 0) continue;
    const fs::path aside = rotate_log(log.path);
    log_warning("{}: renamed the log of an earlier start, up to step {}, to {}", log.path.string(), step,
                aside.filename().string());
  }
}

void RunFolder::make_latest(const fs::path& resumed) const {
  if (!options_.saves || resumed.empty() || !same_folder(resumed.parent_path(), options_.checkpoints)) return;
  checkpoint::make_latest(resumed);
}

void RunFolder::truncate_logs(int64_t step, int64_t every) const {
  for (const Log& log : logs()) {
    const int64_t dropped = truncate_log(log.path, step, log.step_of);
    if (dropped > 0 && step > 0) {
      log_info("{}: removed {} lines after step {}: those steps run again", log.path.string(), dropped, step);
    }
  }
  const fs::path log = options_.logs / kCsvName;
  const int64_t last = last_logged_step(log, csv_step);
  if (last > 0 && last + every <= step)
    log_warning(
        "{}: ends at step {}, but the run resumes after step {}: the lines of the steps between are lost",
        log.string(), last, step);
}

void RunFolder::check_locks() {
  for (FolderLock& lock : locks_) lock.check();
}

void RunFolder::warn_of_later_checkpoints(int64_t step, int64_t keep) const {
  const std::vector<fs::path> later = saved_checkpoints(step);
  if (later.empty()) return;
  log_warning("{}: {} checkpoint{} after step {}, up to {}: replaced when this run saves the same steps{}",
              options_.checkpoints.string(), later.size(), later.size() == 1 ? "" : "s", step,
              later.back().filename().string(),
              keep > 0 ? fmt::format(", and deleted first due to checkpoint.keep ({})", keep) : "");
}

}  // namespace te::train
