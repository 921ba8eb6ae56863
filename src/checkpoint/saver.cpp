#include "checkpoint/saver.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/write_error.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "parallel/watchdog.h"

namespace te::checkpoint {
namespace {

std::string waiting_for_disk(int64_t step) {
  return "for the disk to write " + step_name(step);
}

}  // namespace

/// One save, in the foreground or background.
struct Saver::Task {
  Progress progress;
  std::filesystem::path last_verified;
  std::vector<int64_t> drop;
  Fp8State fp8;
  Fetch fetch;
  bool background = false;
  double start = 0, stalled = 0;
  std::atomic<int64_t> shards_done = 0;  ///< progress of writing, to detect a save that hangs
  std::atomic<bool> collecting = false;  ///< waits for other ranks, which has a separate time limit
  Saved result;
  std::exception_ptr no_folder;  ///< error of creating the temporary folder
  std::exception_ptr error;
  std::atomic<bool> done = false;
  std::optional<parallel::Watchdog::Guard> guard;  ///< in the foreground
};

Saver::Saver(const Context& context, SaverOptions options, TrainingState state, Job job)
    : context_(context), options_(std::move(options)), state_(std::move(state)), job_(std::move(job)) {
  if (job_.who.rank == 0) remove_leftovers(options_.directory);
  shards_ = shards_to_save(state_, options_.optimizer);
  if (std::ranges::any_of(shards_, [](const SavedShard& shard) { return shard.converts(); }))
    converted_.resize(kFetch);
  if (options_.background) reserve();
  if (!options_.background) staging_ = HostBuffer(context_, kFetch * sizeof(float));
}

Saver::~Saver() {
  try {
    finish();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

void Saver::check_limits() const {
  uint64_t parameters = 0, moments = 0;
  for (const SavedShard& shard : shards_)
    (shard.name.starts_with("exp_avg") ? moments : parameters) += shard.file_bytes();
  struct rlimit limit = {};
  const uint64_t largest = std::max(parameters, moments);
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && largest > limit.rlim_cur) {
    user_error(
        "checkpoint.directory: a checkpoint has files of {} bytes, but this process may write only {} "
        "(ulimit -f): raise the limit, or set checkpoint.save_every: 0 and save_last: false",
        largest, limit.rlim_cur);
  }
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(options_.directory, error);
  if (!error && space.available < parameters + moments) {
    log_warning(
        "checkpoint.directory: {}: {} bytes are free, but this rank's part of a checkpoint needs {}: free "
        "disk space before the first save",
        options_.directory.string(), space.available, parameters + moments);
  }
}

std::filesystem::path Saver::folder_of(int64_t step) const {
  return options_.directory / step_name(step);
}

// Memory for background saves: a copy of all data that this rank saves, page-locked with a GPU. If the host does not
// have enough, saves run in the foreground, which needs only a small buffer.
void Saver::reserve() {
  constexpr size_t kAlignment = 64;
  size_t end = 0;
  for (const SavedShard& shard : shards_) {
    offsets_.push_back(end);
    end += (shard.raw_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  const auto bytes = static_cast<int64_t>(end);
  const int64_t available = job_.free_host_bytes;
  std::string reason;
  // A fifth of the memory stays free for the files' page cache and for other processes.
  if (bytes * job_.host_ranks > available / 5 * 4) {
    reason = fmt::format("{:.1f} GiB of host memory are free", static_cast<double>(available) / (1 << 30));
  } else {
    try {
      copy_ = HostBuffer(context_, end);
    } catch (const std::exception& error) {
      reason = error.what();
    }
  }
  if (reason.empty()) return;
  options_.background = false;
  log_warning(
      "checkpoints are saved in the foreground: a copy for the background needs {:.1f} GiB on each of {} "
      "ranks of this host, but {}; set checkpoint.async: false to avoid this warning",
      static_cast<double>(bytes) / (1 << 30), job_.host_ranks, reason);
}

// --- the training thread -----------------------------------------------------------------------------------

void Saver::save(const Progress& progress, const std::filesystem::path& last_verified, bool wait,
                 std::vector<int64_t> drop) {
  join();
  const double start = now_seconds();
  task_ = std::make_unique<Task>();
  Task& task = *task_;
  // All ranks must reach the barrier: an error of creating the folder is thrown after it, on all ranks.
  try {
    if (job_.who.rank == 0) guard_file_system([&] { begin_folder(options_.directory, progress.step); });
  } catch (const UserError&) {
    task.no_folder = std::current_exception();
  }
  if (job_.barrier) job_.barrier();
  task.progress = progress;
  task.last_verified = last_verified;
  task.drop = std::move(drop);
  task.start = start;
  task.background = options_.background;
  if (state_.wait_offload) state_.wait_offload();
  if (saves_fp8(state_)) {
    const parallel::Watchdog::Guard guard(context_,
                                          fmt::format("the scales for {}", step_name(progress.step)));
    task.fp8 = read_fp8(context_, state_);
  }
  if (options_.background) {
    const parallel::Watchdog::Guard guard(context_, fmt::format("the copy for {}", step_name(progress.step)));
    for (size_t i = 0; i < shards_.size(); ++i) shards_[i].copy_raw(context_, copy_.as<char>() + offsets_[i]);
    context_.synchronize();
    task.fetch = [this, &task](size_t index, int64_t first, int64_t count) {
      ++task.shards_done;
      return shards_[index].from_raw(copy_.as<char>() + offsets_[index], first, count, converted_.data());
    };
  } else {
    task.fetch = [this, &task](size_t index, int64_t first, int64_t count) {
      task.guard.reset();  // restarts the watchdog's time limit
      task.guard.emplace(waiting_for_disk(task.progress.step));
      const SavedShard part = shards_[index].part(first, count);
      part.copy_raw(context_, staging_.as<void>());
      context_.synchronize();
      return part.from_raw(staging_.as<void>(), 0, count, converted_.data());
    };
  }
  task.stalled = now_seconds() - start;
  if (options_.background) {
    thread_ = std::thread([this, &task] { run(task); });
    if (wait) join();
  } else {
    task.guard.emplace(waiting_for_disk(progress.step));
    run(task);
    task.guard.reset();
    join();
  }
}

// The watchdog ends the job if the saving thread makes no progress.
void Saver::wait_for_thread() const {
  while (!task_->done) {
    const int64_t shards = task_->shards_done;
    const bool collecting = task_->collecting;
    std::optional<parallel::Watchdog::Guard> guard;
    if (!collecting) guard.emplace(waiting_for_disk(task_->progress.step));
    while (!task_->done && task_->shards_done == shards && task_->collecting == collecting)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Waits for the current task; stores its result in saved_ or throws its error.
void Saver::join() {
  if (!task_) return;
  if (thread_.joinable()) {
    wait_for_thread();
    thread_.join();
  }
  const std::unique_ptr<Task> task = std::move(task_);
  if (task->error) std::rethrow_exception(task->error);
  saved_ = task->result;
}

std::optional<Saved> Saver::poll() {
  if (task_ && task_->done) join();
  return std::exchange(saved_, std::nullopt);
}

std::optional<Saved> Saver::finish() {
  join();
  return std::exchange(saved_, std::nullopt);
}

// --- the saving thread -------------------------------------------------------------------------------------

void Saver::run(Task& task) {
  try {
    guard_file_system([&] { write(task); });
  } catch (...) {
    task.error = std::current_exception();
  }
  task.result.seconds = now_seconds() - task.start;
  task.result.stalled_seconds = task.background ? task.stalled : task.result.seconds;
  task.done = true;
}

void Saver::write(Task& task) {
  const std::filesystem::path temporary = temporary_folder(options_.directory, task.progress.step);
  bool collected = false;
  try {
    if (task.no_folder) std::rethrow_exception(task.no_folder);
    Manifest part = write_rank_files(temporary, job_.who, shards_, task.fetch, task.fp8);
    for (const SavedShard& shard : shards_) task.result.bytes += static_cast<int64_t>(shard.file_bytes());
    task.result.folder = folder_of(task.progress.step);
    if (job_.who.rank != 0) return write_rank_manifest(temporary, job_.who, part);
    part.progress = task.progress;
    part.config = options_.config;
    part.datasets = options_.datasets;
    part.base = options_.base;
    task.guard.reset();
    task.collecting = true;
    std::vector<Manifest> parts = collect_parts(temporary, job_.who.size, job_.timeout_seconds);
    task.collecting = false;
    collected = true;
    if (!task.background) task.guard.emplace(waiting_for_disk(task.progress.step));
    parts.insert(parts.begin(), std::move(part));
    commit_folder(options_.directory, task.progress.step, to_text(merge(parts)));
  } catch (const std::exception& error) {
    if (job_.who.rank == 0) {
      if (!collected) wait_for_ranks(temporary, job_.who.size);
      discard_folder(temporary);
    } else {
      try {
        write_failure_marker(temporary, job_.who, error.what(),
                             dynamic_cast<const WriteError*>(&error) != nullptr);
      } catch (const std::exception&) {  // rank 0 will notice by its timeout, or by the end of this rank
      }
    }
    throw;
  }
  try {
    remove_stale(task);
  } catch (const std::filesystem::filesystem_error& error) {  // the new checkpoint is valid anyway
    log_warning("checkpoint.keep: {}: {}", error.path1().string(), error.code().message());
  } catch (const WriteError& error) {
    log_warning("checkpoint.keep_best: {}", error.what());
  }
}

// Updates DIR/best and deletes checkpoints that are no longer kept.
void Saver::remove_stale(const Task& task) const {
  std::vector<int64_t> best;
  for (const Validation::Best& item : task.progress.validation.best) best.push_back(item.step);
  if (!best.empty()) mark_best(options_.directory, best);
  for (const int64_t step : task.drop) {
    const std::filesystem::path folder = folder_of(step);
    if (folder.filename() != task.last_verified.filename() &&
        std::filesystem::exists(folder / "manifest.json"))
      remove_checkpoint(folder);
  }
  prune(options_.directory, options_.keep, task.last_verified, best);
}

}  // namespace te::checkpoint
