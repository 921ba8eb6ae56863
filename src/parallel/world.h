// The process's place in the job, host-side communication among the ranks, and how a job ends.
//
// MPI is used only when a launcher (mpirun, srun with PMI) started the process; started plainly it is a world of
// one rank, and MPI is never initialized. One World per process, made in main().
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
  /// UserError when Slurm started several tasks without giving MPI the means to connect them.
  World();
  /// Leaves MPI together with the other ranks; after an exception it aborts the job instead.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks of this host
  int local_size() const;
  int hosts() const;
  int first_local() const;  ///< the lowest rank of this host, which tells hosts apart whatever their names
  const std::string& hostname() const;
  bool leader() const { return rank() == 0; }

  // Host values among the ranks of a group, all of which must call (world ranks, as Communicator::world_ranks();
  // empty: the whole world). Every rank gets the result. sum_f64 adds in the order of the ranks.
  using Ranks = std::vector<int>;
  int64_t sum_i64(int64_t value, const Ranks& ranks = {});
  int64_t max_i64(int64_t value, const Ranks& ranks = {});
  int64_t min_i64(int64_t value, const Ranks& ranks = {});
  double sum_f64(double value, const Ranks& ranks = {});
  double max_f64(double value, const Ranks& ranks = {});
  /// The text (any bytes) of the group's rank `root`.
  std::string broadcast_string(const std::string& text, const Ranks& ranks = {}, int root = 0);
  /// The ranks' texts in their order.
  std::vector<std::string> gather_strings(const std::string& text, const Ranks& ranks = {});
  void barrier(const Ranks& ranks = {});

  /// Runs fn on every rank and lets the ranks agree on how it went: when it throws on any of them, JobFailure is
  /// thrown on all. For the phases in which the user's mistakes show (config, files, devices). fn must not
  /// communicate, since a rank that throws would leave the others waiting.
  void run_collectively(const std::function<void()>& fn);

  /// Ends the whole job now, on every rank, with this exit code.
  [[noreturn]] static void abort(int exit_code);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What run_collectively() throws. The message is the same on all ranks: each distinct one once, with the ranks that
/// had it unless all had.
class JobFailure : public std::exception {
 public:
  JobFailure(int exit_code, std::string message) : exit_code_(exit_code), message_(std::move(message)) {}
  int exit_code() const { return exit_code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int exit_code_;
  std::string message_;
};

/// run_main for executables that run as a job: makes the World and runs the body on it, each rank with its share of the
/// host's cores as threads. A JobFailure is printed by
/// rank 0, and every rank returns its exit code. Any other exception concerns this rank alone: it prints
/// "program: rank 3: error: ..." and aborts the job with the exit code (2 after a UserError, else 1). In a world of
/// one rank it behaves as run_main.
int run_job(const char* program, int (*body)(World&, int, char**), int argc, char** argv);

}  // namespace te::parallel
