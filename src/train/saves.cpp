#include "train/saves.h"

#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/log.h"

namespace te::train {

Saves::Saves(std::unique_ptr<checkpoint::Saver> saver, parallel::World& world, std::filesystem::path resumed)
    : saver_(std::move(saver)), world_(world), newest_(std::move(resumed)) {}

// Rank 0 learns of the failures of all ranks.
void Saves::settle(const std::function<std::optional<checkpoint::Saved>()>& ask) {
  try {
    const std::optional<checkpoint::Saved> saved = ask();
    if (!saved) return;
    newest_ = saved->folder;
    if (good_since_) good_ = newest_;
    failure_.clear();
    // What could not go now (the last good one) goes with a later save.
    std::erase_if(drop_, [&](int64_t step) { return !std::filesystem::exists(saver_->folder_of(step)); });
    if (world_.leader()) {
      spdlog::info("saved {}{} ({:.1f} MB{} in {:.2f} s, training waited for {:.2f} s)",
                   saved->folder.string(),
                   best_loss_ ? fmt::format(", among the best: validation loss {:.4f}", *best_loss_) : "",
                   static_cast<double>(saved->bytes) / 1e6, world_.size() > 1 ? " by this rank" : "",
                   saved->seconds, saved->stalled_seconds);
    }
  } catch (const checkpoint::WriteError& error) {
    failure_ = error.what();
    if (world_.leader()) {
      spdlog::warn("NOT SAVED: {}; the run goes on, the next save tries again; the newest checkpoint is {}",
                   failure_, newest_.empty() ? "none" : newest_.string());
    }
  }
  under_way_ = good_since_ = false;
  best_loss_.reset();
}

void Saves::save_best(const checkpoint::Progress& progress, bool whole, double loss,
                      const std::vector<int64_t>& drop) {
  wait();
  best_loss_ = loss;
  drop_.insert(drop_.end(), drop.begin(), drop.end());
  save(progress, whole);
}

void Saves::save(const checkpoint::Progress& progress, bool whole) {
  wait();
  under_way_ = true;
  settle([&]() -> std::optional<checkpoint::Saved> {
    saver_->save(progress, good_, whole, drop_);
    return std::nullopt;
  });
  poll();
}

void Saves::poll() {
  settle([&] { return saver_->poll(); });
}

void Saves::wait() {
  settle([&] { return saver_->finish(); });
}

void Saves::finish() {
  wait();
  world_.together([&] {
    if (world_.leader() && !failure_.empty()) user_error("{}", failure_);
  });
}

void Saves::go_back_to_good() {
  newest_ = good_;
  world_.together([&] {
    if (world_.leader()) checkpoint::make_latest(good_);
  });
}

void Saves::step_was_good() {
  if (under_way_) {
    good_since_ = true;
  } else if (!newest_.empty()) {
    good_ = newest_;
  }
}

}  // namespace te::train
