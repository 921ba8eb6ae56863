// Delays the signals with which Open MPI's mpirun ends its ranks after Ctrl-C or SIGTERM, so that a step of any length
// can finish and be saved.
//
// mpirun sends the ranks SIGCONT, sleeps, sends SIGTERM, sleeps as long again, and sends SIGKILL; meanwhile it does not
// read their output. Open MPI 4 sleeps odls_base_sigkill_timeout seconds (1 by default; checked with 4.1.4). PRRTE's
// prterun, which starts the ranks of Open MPI 5, sleeps 0.25 s without a setting (checked with 5.0.7 and 5.0.11); that
// of Open MPI 6.0 kills them at once. te-train cannot set an option against that. A rank therefore stops mpirun
// (SIGSTOP) when it receives SIGCONT, and continues it when all ranks have saved. A script in /bin/sh continues mpirun
// if the rank ends earlier.
//
// mpirun does the same when a rank has died or aborts the job (World::abort). No step can finish then, and mpirun is
// not stopped.
#pragma once

#include <sys/types.h>

#include <optional>
#include <thread>

#include "parallel/world.h"
#include "train/signals.h"

namespace te::train {

/// Seconds after Ctrl-C or SIGTERM until mpirun kills the ranks, unless it is stopped. Empty outside mpirun.
std::optional<double> seconds_until_mpirun_kills();

/// The nearest ancestor of this process that is mpirun or its daemon on this host.
struct Mpirun {
  pid_t process = 0;    ///< 0: none
  bool prrte = false;   ///< prterun or prted of Open MPI 5
  bool daemon = false;  ///< a daemon, which may serve other jobs, too
};
Mpirun parent_mpirun();

/// For the SIGTERM handler. Returns true if mpirun, whose first signal was SIGCONT, sent the signal: MpirunWatch then
/// decides what it means, and sends the process another SIGTERM if the step is to finish.
bool note_mpirun_signal(pid_t sender);

/// During its lifetime, SIGCONT from mpirun becomes a SIGTERM to this process at once, unless the process was stopped
/// before (mpirun forwards Ctrl-Z, too), and mpirun stays stopped until end_waits(). No effect outside mpirun. Only one
/// instance at a time; create it after catch_signals.
class MpirunWatch {
 public:
  /// Created on all ranks. `requests` must outlive it.
  MpirunWatch(parallel::World& world, Requests& requests);
  ~MpirunWatch();
  MpirunWatch(const MpirunWatch&) = delete;
  MpirunWatch& operator=(const MpirunWatch&) = delete;

  /// Whether mpirun can be stopped: all ranks run on this host, where one of them sees the others and mpirun. The same
  /// on all ranks.
  bool holds() const { return holds_; }
  /// One rank may call this once the ranks of this host have saved. If mpirun is ending the job, it is continued and
  /// its sleeps are cut short until it sends SIGKILL; takes a few seconds at most.
  void end_waits() const;

 private:
  bool holds_ = false;
  std::jthread thread_;
};

}  // namespace te::train
