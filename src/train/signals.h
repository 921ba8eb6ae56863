// Requests to a running job by signals:
//
//   SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR2   finish the current step, save, stop; a second Ctrl-C stops at once
//   SIGUSR1                                     save after the current step, and continue
//
// mpirun forwards SIGUSR1 and SIGUSR2 to the ranks without further action. On Ctrl-C and SIGTERM it would soon kill
// them (train/mpirun.h).
#pragma once

#include <csignal>

namespace te::train {

/// Set by signal handlers on any rank; the ranks agree between two steps.
struct Requests {
  volatile std::sig_atomic_t stop = 0;
  volatile std::sig_atomic_t save = 0;
  volatile std::sig_atomic_t over = 0;  ///< no step follows: stop signals have no effect
};

/// Installs the handlers, which set `requests`. One rank (`is_leader`) acknowledges them on standard output at once.
/// `ranks`: number of ranks of the job, which finish a step together.
/// An ignored SIGHUP stays ignored (nohup). Writing to a closed pipe, or beyond the file size limit, becomes an error
/// of the call instead of a signal.
void catch_signals(Requests& requests, bool is_leader, int ranks = 1);

/// Restores the default handlers: the signals end this process.
void restore_default_signals();

}  // namespace te::train
