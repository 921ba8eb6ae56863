#include "train/mpirun.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stop_token>
#include <string>
#include <string_view>

#include "core/file.h"

namespace te::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A pause of the watching thread beyond this means that the process was stopped: it then saw SIGCONT as it should.
constexpr milliseconds kTick(50), kStopped(400);

std::atomic<pid_t> mpirun = 0;
std::atomic<bool> continued = false, asked_to_stop = false;
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_continue(int /*signal*/, siginfo_t* info, void* /*context*/) {
  if (info->si_pid == mpirun) continued = true;
}

/// The value of "NAME = value" in a file of Open MPI's parameters; empty when it is not there.
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

/// odls_base_sigkill_timeout as mpirun has it, in seconds.
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

void watch(const std::stop_token& ended) {
  for (Clock::duration before{}; !ended.stop_requested();) {
    const Clock::time_point start = Clock::now();
    std::this_thread::sleep_for(kTick);
    const Clock::duration pause = Clock::now() - start;
    if (continued.exchange(false) && std::max(pause, before) < kStopped && !asked_to_stop.exchange(true))
      ::kill(::getpid(), SIGTERM);
    before = pause;
  }
}

}  // namespace

std::optional<double> seconds_until_mpirun_kills() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr || std::getenv("SLURM_STEP_ID") != nullptr)
    return std::nullopt;
  return mpirun_above().prrte ? 0.5 : 2 * sigkill_timeout();
}

Mpirun mpirun_above() {
  constexpr std::array<std::string_view, 7> kNames = {"mpirun",  "mpiexec", "orterun", "orted",
                                                      "prterun", "prte",    "prted"};
  for (pid_t process = ::getppid(); process > 1;) {
    // pid (name) state parent ...: the name may hold blanks and parentheses.
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string stat;
    std::getline(file, stat);
    const size_t open = stat.find('('), close = stat.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 >= stat.size()) return {};
    std::string name = stat.substr(open + 1, close - open - 1);
    name.resize(std::min(name.size(), name.find('.')));  // Debian: mpirun.openmpi
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end())
      return {process, name.starts_with("prte")};
    process = static_cast<pid_t>(std::strtol(stat.c_str() + close + 4, nullptr, 10));
  }
  return {};
}

MpirunWatch::MpirunWatch() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return;
  mpirun = mpirun_above().process;
  if (mpirun == 0) return;
  struct sigaction action = {};
  action.sa_sigaction = on_continue;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(SIGCONT, &action, nullptr);
  thread_ = std::jthread(watch);
}

// mpirun sleeps in a loop, which goes on with the whole seconds that are left when a signal has interrupted it.
// SIGCHLD, which it expects, does nothing else to it.
void MpirunWatch::end_waits() const {
  if (!asked_to_stop) return;
  const int signals = 200 + static_cast<int>(8 * std::clamp(sigkill_timeout(), 0.0, 3600.0));
  for (int i = 0; i < signals; ++i) {
    if (::kill(mpirun, SIGCHLD) != 0) return;
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace te::train
