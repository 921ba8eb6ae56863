// What the outside asks of a running job, by signals:
//
//   SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR2   finish the step in work, save, stop; a second Ctrl-C stops at once
//   SIGUSR1                                     save after the step in work, and go on
//
// mpirun passes SIGUSR1 and SIGUSR2 on to the ranks and does nothing else. On Ctrl-C and SIGTERM it kills them soon
// after (train/mpirun.h).
#pragma once

#include <csignal>

namespace te::train {

/// Set by signal handlers, on any rank; the ranks agree between two steps.
struct Requests {
  volatile std::sig_atomic_t stop = 0;
  volatile std::sig_atomic_t save = 0;
};

/// Installs the handlers, which set `requests`; on one rank (`speaks`) they acknowledge on standard output at once.
/// SIGHUP stays ignored where it is (nohup). Writing to a pipe that was closed, or beyond the largest size of a file,
/// becomes an error of the call instead of a signal.
void catch_signals(Requests& requests, bool speaks);

}  // namespace te::train
