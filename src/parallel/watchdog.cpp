#include "parallel/watchdog.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "parallel/job_end.h"
#include "parallel/operation.h"
#include "parallel/status_board.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

using Seconds = std::chrono::duration<double>;

/// A waiting rank that has not polled for this long is not running: it is stopped or starved of CPU.
constexpr int64_t kStillNs = 2'000'000'000;
constexpr int64_t kBeatNs = 250'000'000;
/// Longer than a rank takes to end a job (World::abort).
constexpr std::chrono::seconds kJobEnd{15};
constexpr std::string_view kForDevice = "for the device in ";

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <size_t kBytes>
void copy_text(char (&to)[kBytes], std::string_view text) {
  const size_t count = std::min(text.size(), kBytes - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

thread_local char activity[ScopedActivity::kBytes] = "";
thread_local Operation* current_operation = nullptr;

struct State {
  std::atomic<int64_t> timeout_ns{0};
  alignas(64) char own_memory[512] = {};
  StatusBoard board{own_memory, 1};
  int slot = 0;
  int world_rank = 0;
  Status status;  // this rank's entry on the board
  std::atomic<uint64_t> sequence{0};
  std::atomic<bool> fired{false};

  // The guard and the thread that watches it.
  std::atomic<int64_t> guard_since_ns{0};  // 0: not armed
  std::mutex mutex;                        // guards the members below
  std::condition_variable wake;
  std::string guard_what, guard_activity;
  bool stop = false;
  std::optional<std::thread> thread;
  std::map<int, std::function<Watchdog::Report(bool)>> probes;
  int next_probe = 0;
};
static_assert(sizeof(State::own_memory) >= StatusBoard::bytes(1));

/// Never destroyed: the thread and exiting ranks may still read it.
State& state() {
  static State& instance = *new State;
  return instance;
}

/// Changes this rank's entry on the board.
template <class Change>
void publish(Change&& change) {
  State& s = state();
  change(s.status);
  s.status.rank = s.world_rank;
  s.board.publish(s.slot, s.status);
}

std::string during(std::string_view text) {
  return text.empty() ? "" : fmt::format(", during {}", text);
}

/// Describes what the other ranks of this host are doing.
std::string others(int64_t now) {
  State& s = state();
  std::string text;
  for (int slot = 0; slot < s.board.slots(); ++slot) {
    const Status status = s.board.read(slot);
    if (slot == s.slot) continue;
    if (status.rank < 0) {
      text += "; a rank has not communicated yet";
      continue;
    }
    const auto seconds = [now](int64_t since) { return double(now - since) * 1e-9; };
    text += fmt::format("; rank {} ", status.rank);
    if (status.guarded_since_ns != 0) {
      text += fmt::format("has waited {:.1f} s {}, last launched", seconds(status.guarded_since_ns),
                          status.guard);
    } else if (status.waiting != 0 && now - status.seen_ns > kStillNs) {
      text += fmt::format("has not run for {:.1f} s, stopped in", seconds(status.seen_ns));
    } else if (status.waiting != 0) {
      text += fmt::format("has waited {:.1f} s in", seconds(status.since_ns));
    } else {
      text += fmt::format("is not communicating, {:.1f} s after", seconds(status.since_ns));
    }
    text += fmt::format(" {} of {} (its operation {}{})", status.operation, status.group, status.sequence,
                        during(status.activity));
  }
  return text;
}

/// Prints the message and ends the job. The first rank of a host adds the status of the others, which have two seconds
/// to print their messages. Where another rank is already ending the job, its reason and exit code have priority: this
/// one ends it only if that takes too long.
[[noreturn]] void fire(const std::string& what) {
  State& s = state();
  if (s.board.ending()) std::this_thread::sleep_for(kJobEnd);
  if (!s.fired.exchange(true)) {
    const std::string line = fmt::format("watchdog: rank {}: {}{}\n", s.world_rank, what,
                                         s.board.claim_report() ? others(now_ns()) : "");
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));
  World::abort(1);
}

/// Calls all probes; returns the first error and all pending operations.
Watchdog::Report ask_probes(bool find_pending) {
  Watchdog::Report all;
  for (const auto& [handle, probe] : state().probes) {
    const Watchdog::Report report = probe(find_pending);
    if (all.error.empty()) all.error = report.error;
    if (!report.pending.empty()) all.pending += (all.pending.empty() ? "" : " and ") + report.pending;
  }
  return all;
}

/// Body of the thread: checks the guard about once per second.
void watch() {
  State& s = state();
  std::unique_lock lock(s.mutex);
  while (!s.stop) {
    const int64_t timeout = s.timeout_ns;
    s.wake.wait_for(lock, std::min(Seconds(1.0), Seconds(timeout > 0 ? double(timeout) * 0.25e-9 : 1.0)));
    const int64_t since = s.guard_since_ns;
    if (s.stop || since == 0 || timeout == 0) continue;
    if (const std::string error = ask_probes(false).error; !error.empty()) {
      fire(fmt::format("{}, waiting {}{}", error, s.guard_what, during(s.guard_activity)));
    }
    const int64_t waited = now_ns() - since;
    if (waited <= timeout || s.guard_since_ns != since) continue;
    const std::string pending = ask_probes(true).pending;
    const bool device = s.guard_what.starts_with(kForDevice);
    fire(fmt::format("has waited {:.1f} s {}{}{}", double(waited) * 1e-9, s.guard_what,
                     during(s.guard_activity),
                     !device           ? ""
                     : pending.empty() ? "; no communication is pending on the device"
                                       : "; pending on the device: " + pending));
  }
}

}  // namespace

ScopedActivity::ScopedActivity(std::string_view text) {
  std::memcpy(outer_.data(), activity, kBytes);
  copy_text(activity, text);
  publish([](Status& status) { copy_text(status.activity, activity); });
}

ScopedActivity::~ScopedActivity() {
  std::memcpy(activity, outer_.data(), kBytes);
  publish([](Status& status) { copy_text(status.activity, activity); });
}

const char* ScopedActivity::current() {
  return activity;
}

std::string list_ranks(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, ", "));
}

Operation::Operation(const char* name, const std::string& group, const std::vector<int>& ranks)
    : name_(name), group_(group), ranks_(ranks), since_ns_(now_ns()), outer_(current_operation) {
  current_operation = this;
  state().sequence.fetch_add(1, std::memory_order_relaxed);
  publish(true);
}

Operation::Operation(const char* name, const Communicator& group, const Context& context)
    : Operation(name, group.name(), group.world_ranks()) {
  if (context.is_cuda() && watchdog::armable()) armed_ = watchdog::arm(describe_current());
}

Operation::~Operation() {
  if (armed_) watchdog::disarm();
  current_operation = outer_;
  publish(false);
}

void Operation::publish(bool waiting) const {
  parallel::publish([&](Status& status) {
    status.waiting = waiting ? 1 : 0;
    status.sequence = state().sequence.load(std::memory_order_relaxed);
    status.since_ns = waiting ? since_ns_ : now_ns();
    status.seen_ns = now_ns();
    copy_text(status.operation, name_);
    copy_text(status.group, group_);
  });
}

void Operation::check_current() {
  const Operation* operation = current_operation;
  const int64_t timeout = state().timeout_ns.load(std::memory_order_relaxed);
  if (operation == nullptr || timeout == 0) return;
  const int64_t now = now_ns(), waited = now - operation->since_ns_;
  if (waited <= timeout) {
    if (now - state().status.seen_ns > kBeatNs)
      parallel::publish([now](Status& status) { status.seen_ns = now; });
    return;
  }
  fire(fmt::format("has waited {:.1f} s in {} (operation {}{})", double(waited) * 1e-9, describe_current(),
                   state().sequence.load(), during(activity)));
}

std::string Operation::describe_current() {
  const Operation* operation = current_operation;
  if (operation == nullptr) return "";
  return fmt::format("{} of {} (ranks {})", operation->name_, operation->group_,
                     list_ranks(operation->ranks_));
}

void Watchdog::set_timeout(double seconds) {
  TE_CHECK(seconds >= 0, "watchdog: timeout of {} s", seconds);
  state().timeout_ns = static_cast<int64_t>(seconds * 1e9);
}

double Watchdog::timeout() {
  return double(state().timeout_ns) * 1e-9;
}

Watchdog::Guard::Guard(const Context& context, std::string_view what)
    : armed_(context.is_cuda() && watchdog::arm(what)) {}

Watchdog::Guard::Guard(std::string_view what) : armed_(watchdog::arm_for(what)) {}

Watchdog::Guard::~Guard() {
  if (armed_) watchdog::disarm();
}

Watchdog::Pause::Pause() : timeout_(timeout()) {
  set_timeout(0.0);
}

Watchdog::Pause::~Pause() {
  set_timeout(timeout_);
}

int Watchdog::add_probe(std::function<Report(bool)> probe) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.probes.emplace(s.next_probe, std::move(probe));
  return s.next_probe++;
}

void Watchdog::remove_probe(int handle) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.probes.erase(handle);
}

void announce_job_end() {
  state().board.announce_end();
}

bool job_is_ending() {
  return state().board.ending();
}

namespace watchdog {

void attach_board(void* memory, int slots, int slot, int world_rank) {
  State& s = state();
  s.board = StatusBoard(memory, slots);
  s.slot = slot;
  s.world_rank = world_rank;
}

void detach_board() {
  State& s = state();
  std::optional<std::thread> thread;
  {
    const std::lock_guard lock(s.mutex);
    s.stop = true;
    thread = std::exchange(s.thread, std::nullopt);
  }
  s.wake.notify_all();
  if (thread) thread->join();
  s.stop = false;
  s.board = StatusBoard(s.own_memory, 1);
  s.slot = 0;
}

bool armable() {
  return state().timeout_ns != 0 && state().guard_since_ns == 0;
}

bool arm(std::string_view what) {
  return armable() && arm_for(std::string(kForDevice) + std::string(what));
}

bool arm_for(std::string_view wait) {
  State& s = state();
  if (!armable()) return false;
  const std::lock_guard lock(s.mutex);
  s.guard_what = wait;
  s.guard_activity = activity;
  if (!s.thread) s.thread.emplace(watch);
  s.guard_since_ns = now_ns();
  publish([&](Status& status) {
    status.guarded_since_ns = s.guard_since_ns;
    copy_text(status.guard, wait);
  });
  return true;
}

void disarm() {
  state().guard_since_ns = 0;
  publish([](Status& status) { status.guarded_since_ns = 0; });
}

}  // namespace watchdog
}  // namespace te::parallel
