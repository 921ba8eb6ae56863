// What Open MPI's mpirun does to its ranks on Ctrl-C and SIGTERM, and how a rank makes good use of it.
//
// It sends them SIGCONT, sleeps odls_base_sigkill_timeout seconds (1 unless set), sends SIGTERM, sleeps as long again,
// and sends SIGKILL; it sleeps on when all of them have ended (4.1.4, measured: docs/reliability.md). So a large
// timeout, which a step and a save may need, would make Ctrl-C slow at both ends. A rank therefore takes SIGCONT from
// mpirun for the request to stop, and when all have saved it wakes mpirun: a signal ends a second of its sleep.
//
// Open MPI 5 starts ranks through PRRTE, whose prterun has no such setting: version 3.0 sends SIGCONT, SIGTERM 0.25 s
// later and SIGKILL after 0.25 s more (5.0.7, measured); that of Open MPI 6.0 ends them at once.
#pragma once

#include <sys/types.h>

#include <optional>
#include <thread>

namespace te::train {

/// Under mpirun: how long after Ctrl-C or SIGTERM it kills the ranks. Empty in other jobs.
std::optional<double> seconds_until_mpirun_kills();

/// The nearest of this process's ancestors that is mpirun or its daemon on this host.
struct Mpirun {
  pid_t process = 0;   ///< 0: none
  bool prrte = false;  ///< of Open MPI 5
};
Mpirun mpirun_above();

/// While it lives, SIGCONT from mpirun becomes a SIGTERM to this process at once, unless the process had been stopped
/// (Ctrl-Z, which mpirun hands on as well). Nothing in other jobs. One at a time; after catch_signals.
class MpirunWatch {
 public:
  MpirunWatch();
  MpirunWatch(const MpirunWatch&) = delete;
  MpirunWatch& operator=(const MpirunWatch&) = delete;

  /// Once the ranks of this host have saved what they had to save, one of them may call this: when mpirun had asked it
  /// to stop, mpirun is woken until it sends SIGKILL, for some seconds at most.
  void end_waits() const;

 private:
  std::jthread thread_;
};

}  // namespace te::train
