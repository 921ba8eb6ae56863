// This process's rank in the job, host-side communication between ranks, and the end of a job.
//
// MPI is initialized only if a launcher (mpirun, srun with PMI) started the process; otherwise the world has one rank.
// A process has one World, which main() creates.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace te::parallel {

class World {
 public:
  /// UserError if Slurm started several tasks without a PMI for MPI to connect them, if the launcher is another MPI's,
  /// or if this MPI lacks the thread support that te-train needs.
  World();
  /// Finalizes MPI together with the other ranks; aborts the job if an exception is being handled.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< rank among the ranks of this host
  int local_size() const;
  int hosts() const;
  int first_local() const;  ///< lowest rank of this host, which identifies the host (host names may be equal)
  const std::string& hostname() const;
  bool leader() const { return rank() == 0; }

  // Collectives of host values over the ranks of a group (world ranks, as Communicator::world_ranks(); empty for the
  // whole world). All ranks of the group must call and get the result. sum_f64 adds in rank order.
  using Ranks = std::vector<int>;
  int64_t sum_i64(int64_t value, const Ranks& ranks = {});
  int64_t max_i64(int64_t value, const Ranks& ranks = {});
  int64_t min_i64(int64_t value, const Ranks& ranks = {});
  double sum_f64(double value, const Ranks& ranks = {});
  double max_f64(double value, const Ranks& ranks = {});
  /// The text (arbitrary bytes) of the group's rank `root`.
  std::string broadcast_string(const std::string& text, const Ranks& ranks = {}, int root = 0);
  /// The ranks' texts in rank order.
  std::vector<std::string> gather_strings(const std::string& text, const Ranks& ranks = {});
  void barrier(const Ranks& ranks = {});

  /// Runs fn on every rank. If it throws on any rank, throws JobFailure on all ranks. Use it for phases that can fail
  /// because of a user's mistake (config, files, devices). fn must not communicate: if it threw on one rank, the others
  /// would wait forever.
  void run_collectively(const std::function<void()>& fn);
  /// Runs fn on rank 0 in run_collectively(); returns its result on every rank.
  std::string from_leader(const std::function<std::string()>& fn);

  /// Ends the job immediately, on every rank, with this exit code.
  [[noreturn]] static void abort(int exit_code);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Exception of run_collectively(). All ranks have the same text: each distinct message once, with its ranks unless it
/// occurred on all.
class JobFailure : public std::exception {
 public:
  JobFailure(int exit_code, std::string message) : exit_code_(exit_code), message_(std::move(message)) {}
  int exit_code() const { return exit_code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int exit_code_;
  std::string message_;
};

/// run_main for executables that run as a job: creates the World and runs the body with as many threads as the rank's
/// share of the host's cores. Rank 0 prints a JobFailure, and every rank returns its exit code. Any other exception
/// occurred only on this rank: the rank prints "program: rank 3: error: ..." and aborts the job with the exit code (2
/// after a UserError, else 1). In a world of one rank it is the same as run_main.
int run_job(const char* program, int (*body)(World&, int, char**), int argc, char** argv);

}  // namespace te::parallel
