#include "train/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "train/mpirun.h"

namespace te::train {
namespace {

Requests* asked = nullptr;
bool speaking = false, read_by_mpirun = false, several = false;
constexpr std::initializer_list<int> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

// While mpirun ends its ranks, it does not read their output: a rank that waits to write to the pipe would never save.
// Output that does not fit is lost; the logs have it.
void never_wait_for_mpirun() {
  if (!read_by_mpirun) return;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = ::fcntl(stream, F_GETFL);
    if (flags >= 0) ::fcntl(stream, F_SETFL, flags | O_NONBLOCK);
  }
}

// Signal handlers may call little more than write.
void say(const char* text) {
  if (!speaking) return;
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text, std::strlen(text));
  errno = error;
}

void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  if (asked->over != 0) {
    if (signal != SIGINT) return;
    if (asked->stop == 0) return static_cast<void>(asked->stop = 1);
  }
  if (signal == SIGTERM && note_mpirun_signal(info->si_pid)) return;
  if (signal == SIGUSR1) {
    asked->save = 1;
    return say("\nSIGUSR1: a checkpoint is saved after this step\n");
  }
  if (asked->stop == 0) {
    asked->stop = 1;
    never_wait_for_mpirun();
    if (several)
      return say("\nstop signal: finishing this step and saving a checkpoint, if all ranks still run\n");
    return say(signal == SIGINT
                   ? "\nCtrl-C: finishing this step and saving a checkpoint; Ctrl-C again stops at once\n"
                   : "\nstop signal: finishing this step and saving a checkpoint\n");
  }
  if (signal != SIGINT) return;  // batch systems send signals repeatedly
  say("\nCtrl-C again: stopped, the current step is lost\n");
  ::_exit(130);
}

}  // namespace

void catch_signals(Requests& requests, bool is_leader, int ranks) {
  asked = &requests;
  speaking = is_leader;
  read_by_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
  several = ranks > 1;
  for (const int signal : kSignals) {
    struct sigaction now = {};
    if (signal == SIGHUP && ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void restore_default_signals() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

}  // namespace te::train
