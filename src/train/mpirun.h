// What Open MPI's mpirun does to its ranks on Ctrl-C and SIGTERM, and how a step of any length is finished and saved
// all the same.
//
// It sends them SIGCONT, sleeps, sends SIGTERM, sleeps as long again, and sends SIGKILL; meanwhile it reads nothing of
// what they print. Open MPI 4 sleeps odls_base_sigkill_timeout seconds (1 unless set; 4.1.4, measured). PRRTE's
// prterun, which starts the ranks of Open MPI 5, sleeps 0.25 s and has no such setting (5.0.7 and 5.0.11, measured);
// that of Open MPI 6.0 ends them at once. No option that te-train could give itself changes that, so a rank stops
// mpirun (SIGSTOP) as soon as it hears SIGCONT, and lets it continue when all ranks have saved. A script that runs in
// /bin/sh lets mpirun continue should a rank end before that.
//
// mpirun does the same when a rank has died, or ends the job (World::abort): then no step can be finished any more, and
// mpirun is not held.
#pragma once

#include <sys/types.h>

#include <optional>
#include <thread>

#include "parallel/world.h"
#include "train/signals.h"

namespace te::train {

/// Under mpirun: how long after Ctrl-C or SIGTERM it kills the ranks unless it is held. Empty in other jobs.
std::optional<double> seconds_until_mpirun_kills();

/// The nearest of this process's ancestors that is mpirun or its daemon on this host.
struct Mpirun {
  pid_t process = 0;    ///< 0: none
  bool prrte = false;   ///< of Open MPI 5
  bool daemon = false;  ///< which may serve other jobs as well
};
Mpirun parent_mpirun();

/// For the handler of SIGTERM. True where mpirun has sent it, whose first signal was SIGCONT: MpirunWatch decides what
/// that means, and sends the process a SIGTERM of its own where the step is to be finished.
bool note_mpirun_signal(pid_t sender);

/// While it lives, SIGCONT from mpirun becomes a SIGTERM to this process at once, unless the process had been stopped
/// (Ctrl-Z, which mpirun hands on as well), and mpirun is held until end_waits(). Nothing in other jobs. One at a time;
/// after catch_signals.
class MpirunWatch {
 public:
  /// All ranks. `requests` must outlive it.
  MpirunWatch(parallel::World& world, Requests& requests);
  ~MpirunWatch();
  MpirunWatch(const MpirunWatch&) = delete;
  MpirunWatch& operator=(const MpirunWatch&) = delete;

  /// mpirun can be held: all ranks are on this host, where one of them sees the others and mpirun. The same on all
  /// ranks.
  bool holds() const { return holds_; }
  /// Once the ranks of this host have saved what they had to save, one of them may call this: when mpirun had asked it
  /// to stop, mpirun is let go and woken until it sends SIGKILL, for some seconds at most.
  void end_waits() const;

 private:
  bool holds_ = false;
  std::jthread thread_;
};

}  // namespace te::train
