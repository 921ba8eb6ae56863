#include "train/checkpoint_manager.h"

#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/log.h"

namespace te::train {

CheckpointManager::CheckpointManager(std::unique_ptr<checkpoint::Saver> saver, parallel::World& world,
                                     std::filesystem::path resumed, const checkpoint::KeptCheckpoints& kept)
    : saver_(std::move(saver)), world_(world), newest_(std::move(resumed)) {
  if (!own(newest_)) return;  // never delete another run's checkpoints
  drop_ = kept.drop;
  const std::filesystem::path last_verified = newest_.parent_path() / kept.last_verified;
  if (!kept.last_verified.empty() && std::filesystem::exists(last_verified / "manifest.json"))
    last_verified_ = last_verified;
}

/// Whether the checkpoint is in the directory that this run saves to.
bool CheckpointManager::own(const std::filesystem::path& folder) const {
  std::error_code error;
  return !folder.empty() &&
         std::filesystem::equivalent(folder.parent_path(), saver_->folder_of(0).parent_path(), error);
}

// Rank 0 receives the failures of all ranks.
void CheckpointManager::report_result(const std::function<std::optional<checkpoint::Saved>()>& ask) {
  try {
    const std::optional<checkpoint::Saved> saved = ask();
    if (!saved) return;
    newest_ = saved->folder;
    if (verified_since_) last_verified_ = newest_;
    failure_.clear();
    // What cannot be deleted yet (the last verified checkpoint) is deleted after a later save.
    std::erase_if(drop_, [&](int64_t step) { return !std::filesystem::exists(saver_->folder_of(step)); });
    if (world_.leader()) {
      log_info("saved {}{} ({:.1f} MB{} in {:.2f} s, training waited for {:.2f} s)", saved->folder.string(),
               best_loss_ ? fmt::format(", among the best: validation loss {:.4f}", *best_loss_) : "",
               static_cast<double>(saved->bytes) / 1e6, world_.size() > 1 ? " by this rank" : "",
               saved->seconds, saved->stalled_seconds);
    }
  } catch (const checkpoint::WriteError& error) {
    failure_ = error.what();
    if (world_.leader()) {
      log_warning("NOT SAVED: {}; training continues, and the next save tries again; newest checkpoint: {}",
                  failure_, newest_.empty() ? "none" : newest_.string());
    }
  }
  under_way_ = verified_since_ = false;
  best_loss_.reset();
}

void CheckpointManager::save_best(const checkpoint::Progress& progress, bool blocking, double loss,
                                  const std::vector<int64_t>& drop) {
  wait();
  best_loss_ = loss;
  drop_.insert(drop_.end(), drop.begin(), drop.end());
  save(progress, blocking);
}

void CheckpointManager::save(const checkpoint::Progress& progress, bool blocking) {
  wait();
  under_way_ = true;
  report_result([&]() -> std::optional<checkpoint::Saved> {
    checkpoint::Progress saved = progress;
    saved.checkpoints = {.last_verified = own(last_verified_) ? last_verified_.filename().string() : "",
                         .drop = drop_};
    saver_->save(saved, last_verified_, blocking, drop_);
    return std::nullopt;
  });
  poll();
}

void CheckpointManager::poll() {
  report_result([&] { return saver_->poll(); });
}

void CheckpointManager::wait() {
  report_result([&] { return saver_->finish(); });
}

void CheckpointManager::finish() {
  wait();
  world_.run_collectively([&] {
    if (world_.leader() && !failure_.empty()) user_error("{}", failure_);
  });
}

std::filesystem::path CheckpointManager::broadcast_last_verified() {
  wait();
  return world_.broadcast_string(last_verified_.string());
}

// A checkpoint of another run stays the latest of that run.
void CheckpointManager::rollback_to(int64_t step) {
  wait();
  std::erase_if(drop_, [&](int64_t dropped) { return dropped > step; });
  world_.run_collectively([&] {
    const auto later = [&](const std::filesystem::path& folder) {
      return own(folder) && checkpoint::step_of(folder.filename().string()) > step;
    };
    if (!world_.leader() || !later(newest_)) return;
    newest_ = checkpoint::checkpoint_before(saver_->folder_of(step + 1)).value_or("");
    if (later(last_verified_)) last_verified_ = newest_;
    if (!newest_.empty()) checkpoint::make_latest(newest_);
  });
}

void CheckpointManager::confirm_checkpoint() {
  if (under_way_) {
    verified_since_ = true;
  } else if (!newest_.empty()) {
    last_verified_ = newest_;
  }
}

}  // namespace te::train
