// What the outside asks of a running job, by signals:
//
//   SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR2   finish the step in work, save, stop; a second Ctrl-C stops at once
//   SIGUSR1                                     save after the step in work, and go on
//
// mpirun passes SIGUSR1 and SIGUSR2 on to the ranks and does nothing else. On Ctrl-C and SIGTERM it would kill them
// soon after (train/mpirun.h).
#pragma once

#include <csignal>

namespace te::train {

/// Set by signal handlers, on any rank; the ranks agree between two steps.
struct Requests {
  volatile std::sig_atomic_t stop = 0;
  volatile std::sig_atomic_t save = 0;
  volatile std::sig_atomic_t over = 0;  ///< no step follows: signals to stop have nothing left to do
};

/// Installs the handlers, which set `requests`; on one rank (`speaks`) they acknowledge on standard output at once.
/// `ranks`: of the job, which can only finish a step together.
/// SIGHUP stays ignored where it is (nohup). Writing to a pipe that was closed, or beyond the largest size of a file,
/// becomes an error of the call instead of a signal.
void catch_signals(Requests& requests, bool is_leader, int ranks = 1);

/// The signals end this process again, as they do without handlers.
void restore_default_signals();

}  // namespace te::train
