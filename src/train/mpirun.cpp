#include "train/mpirun.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/log.h"
#include "parallel/job_end.h"

namespace te::train {
namespace {

using std::chrono::milliseconds;

// If the watching thread sleeps longer than this, the process was stopped, and the SIGCONT was meant for it.
constexpr milliseconds kTick(50), kStopped(400);

std::atomic<pid_t> mpirun = 0;
std::atomic<bool> may_hold = false, held = false, asked_to_stop = false;
std::atomic<int64_t> last_tick = 0, last_stop = 0;  ///< ticks of the watching thread, in ms
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);
/// Ranks of this host and their processes; changes only while `mpirun` is 0.
std::vector<std::pair<int, pid_t>> peers;
Requests* told = nullptr;

int64_t now() {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A rank of this host that mpirun has seen end, or -1.
int ended_rank() {
  for (const auto& [rank, process] : peers)
    if (::kill(process, 0) != 0 && errno == ESRCH) return rank;
  return -1;
}

void let_go() {
  if (held.exchange(false)) ::kill(mpirun, SIGCONT);
}

// Called in a signal handler when mpirun asks its ranks to end.
void ask_to_stop() {
  const int error = errno;
  if (!asked_to_stop.exchange(true) && may_hold && !parallel::job_is_ending() && ended_rank() < 0) {
    held = true;
    ::kill(mpirun, SIGSTOP);
  }
  errno = error;
}

void on_continue(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (mpirun == 0 || info->si_pid != mpirun) return;
  const int64_t time = now();
  if (time - last_tick < kStopped.count() && time - last_stop >= kStopped.count()) ask_to_stop();
}

/// The value of "NAME = value" in an Open MPI parameter file; empty if there is none.
std::string parameter_in(const std::string& path, const std::string& name) {
  std::istringstream lines(read_file(path).text);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line.find_first_not_of(" \t") == line.find('#')) continue;
    const size_t begin = line.find_first_not_of(" \t"), end = line.find_last_not_of(" \t", equals - 1);
    if (begin >= equals || line.substr(begin, end - begin + 1) != name) continue;
    return line.substr(equals + 1);
  }
  return "";
}

/// Seconds that mpirun sleeps between two signals.
double sigkill_timeout() {
  const std::string name = "odls_base_sigkill_timeout";
  std::string value;
  if (const char* given = std::getenv(("OMPI_MCA_" + name).c_str())) value = given;
  const char* home = std::getenv("HOME");
  if (value.empty() && home != nullptr)
    value = parameter_in(std::string(home) + "/.openmpi/mca-params.conf", name);
  if (value.empty()) value = parameter_in("/etc/openmpi/openmpi-mca-params.conf", name);
  return value.empty() ? 1.0 : std::atof(value.c_str());
}

/// Whether a stopped mpirun has received SIGINT (a second Ctrl-C).
bool interrupted_again() {
  std::ifstream file("/proc/" + std::to_string(mpirun) + "/status");
  const std::string key = "ShdPnd:";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key))
      return (std::strtoull(line.c_str() + key.size(), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
  return false;
}

// Starts a process that continues mpirun when a rank ends. As a separate process it notices the end of any rank, and in
// its own process group it survives when mpirun kills the ranks. An ended process that mpirun has not reaped yet has no
// executable in /proc.
void let_go_at_the_end_of_a_rank() {
  std::string script =
      "mpirun=$1; shift; while :; do for rank; do [ -e /proc/$rank/exe ] || break 2; done; sleep 0.2; done; "
      "kill -CONT $mpirun";
  std::vector<std::string> words = {"/bin/sh", "-c", script, "sh", std::to_string(mpirun)};
  for (const auto& [rank, process] : peers) words.push_back(std::to_string(process));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&files, stream, "/dev/null", O_RDWR, 0);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  if (::posix_spawn(&child, arguments[0], &files, &attributes, arguments.data(), environ) != 0) let_go();
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
}

// mpirun forwards no output while it is stopped, but its terminal may still be there.
void say_on_terminal(std::string_view text) {
  const int terminal = ::open("/dev/tty", O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (terminal < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(terminal, text.data(), text.size());
  ::close(terminal);
}

// Handles the request of mpirun, once the watching thread sees it.
void act() {
  if (const int rank = ended_rank(); rank >= 0) {
    told->over = 1;
    restore_default_signals();
    const auto speaker = std::ranges::find_if(peers, [&](auto& peer) { return peer.first != rank; });
    if (speaker->second != ::getpid()) return;
    const std::string text = fmt::format(
        "te-train: rank {} has ended, so the job ends: the current step is lost and no checkpoint is saved; "
        "resume from the last one with checkpoint.resume=auto\n",
        rank);
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    return;
  }
  if (parallel::job_is_ending()) {  // the job reports the reason
    told->over = 1;
    return restore_default_signals();
  }
  if (held) {
    let_go_at_the_end_of_a_rank();
    say_on_terminal(
        "\nfinishing this step and saving a checkpoint; until then mpirun is paused, and a shell may report "
        "it as stopped (fg, or Ctrl-C again, ends the job at once)\n");
  }
  ::kill(::getpid(), SIGTERM);
}

void watch(const std::stop_token& ended) {
  for (bool acted = false; !ended.stop_requested();) {
    const int64_t start = now();
    std::this_thread::sleep_for(kTick);
    last_tick = now();
    if (last_tick - start >= kStopped.count()) last_stop = last_tick.load();
    if (asked_to_stop && !std::exchange(acted, true)) act();
    if (held && interrupted_again()) let_go();
  }
}

}  // namespace

std::optional<double> seconds_until_mpirun_kills() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr || std::getenv("SLURM_STEP_ID") != nullptr)
    return std::nullopt;
  return parent_mpirun().prrte ? 0.5 : 2 * sigkill_timeout();
}

Mpirun parent_mpirun() {
  constexpr std::array<std::string_view, 7> kNames = {"mpirun", "mpiexec", "orterun", "prterun",
                                                      "orted",  "prte",    "prted"};
  constexpr ptrdiff_t kLaunchers = 4;  // then daemons
  for (pid_t process = ::getppid(); process > 1;) {
    // Format: pid (name) state parent ...; the name may contain blanks and parentheses.
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string stat;
    std::getline(file, stat);
    const size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size()) return {};
    std::string name = stat.substr(open + 1, close - open - 1);
    name.resize(std::min(name.size(), name.find('.')));  // Debian: mpirun.openmpi
    const auto found = std::ranges::find(kNames, name);
    if (found != kNames.end())
      return {process, name.starts_with("prte"), found - kNames.begin() >= kLaunchers};
    process = static_cast<pid_t>(std::strtol(stat.c_str() + close + 4, nullptr, 10));
  }
  return {};
}

bool note_mpirun_signal(pid_t sender) {
  if (mpirun == 0 || sender != mpirun) return false;
  ask_to_stop();
  return true;
}

MpirunWatch::MpirunWatch(parallel::World& world, Requests& requests) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return;
  const Mpirun above = parent_mpirun();
  const std::vector<std::string> processes =
      world.gather_strings(fmt::format("{} {}", world.first_local(), ::getpid()));
  peers.clear();
  bool seen = true;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& text = processes[static_cast<size_t>(rank)];
    if (std::atoi(text.c_str()) != world.first_local()) continue;
    peers.emplace_back(rank, std::atoi(text.c_str() + text.find(' ')));
    // A process in another container is not visible.
    seen = seen && ::kill(peers.back().second, 0) == 0;
  }
  if (!seen) peers.clear();
  const bool can = seen && above.process > 0 && !above.daemon && world.hosts() == 1;
  holds_ = world.min_i64(can ? 1 : 0) != 0;
  if (above.process == 0) return;
  told = &requests;
  asked_to_stop = held = false;
  may_hold = holds_ && world.local_rank() == 0;
  last_tick = now();
  mpirun = above.process;
  struct sigaction action = {};
  action.sa_sigaction = on_continue;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(SIGCONT, &action, nullptr);
  thread_ = std::jthread(watch);
}

MpirunWatch::~MpirunWatch() {
  may_hold = false;
  if (told != nullptr) told->over = 1;
  if (thread_.joinable()) thread_.request_stop(), thread_.join();
  let_go();
  mpirun = 0;
}

// mpirun's sleep continues for the remaining whole seconds after a signal has interrupted it, so signals shorten it.
// mpirun expects SIGCHLD, which has no other effect.
void MpirunWatch::end_waits() const {
  if (!asked_to_stop) return;
  let_go();
  const int signals = 200 + static_cast<int>(8 * std::clamp(sigkill_timeout(), 0.0, 3600.0));
  for (int i = 0; i < signals; ++i) {
    if (::kill(mpirun, SIGCHLD) != 0) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace te::train
