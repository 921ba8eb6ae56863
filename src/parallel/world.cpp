#include "parallel/world.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>

#include "core/cpu_threads.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/strings.h"
#include "parallel/job_end.h"
#include "parallel/launch.h"
#include "parallel/mpi_support.h"
#include "parallel/operation.h"
#include "parallel/status_board.h"

namespace te::parallel {
namespace {

/// True if a launcher started this process as a rank of an MPI job.
bool launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (tasks != nullptr && std::atoi(tasks) > 1) {
    user_error(
        "srun started {} tasks without MPI: use srun --mpi=pmix (srun --mpi=list shows what is available) "
        "or mpirun",
        tasks);
  }
  return false;
}

/// The number of processes that a launcher says it has started; 1 if none says more.
int announced_processes() {
  int most = 1;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* value = std::getenv(name)) most = std::max(most, std::atoi(value));
  }
  return most;
}

/// Flushes this rank's output and waits until the launcher has read it, or for two seconds: Open MPI 5 drops what is in
/// a rank's pipes when it ends the job.
void deliver_output() {
  std::fflush(nullptr);
  if (!mpi_running()) return;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  const auto unread = [](int file) {
    struct stat status {};
    int bytes = 0;
    return fstat(file, &status) == 0 && S_ISFIFO(status.st_mode) && ioctl(file, FIONREAD, &bytes) == 0 &&
           bytes > 0;
  };
  while ((unread(STDOUT_FILENO) || unread(STDERR_FILENO)) && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

struct World::State {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, hosts = 1, first_local = 0;
  std::string hostname = host_name();
  bool mpi = false;
  int exceptions = std::uncaught_exceptions();
  MPI_Win board = MPI_WIN_NULL;
  std::map<Ranks, MPI_Comm> groups;

  /// `ranks`, or all ranks if it is empty.
  Ranks members(const Ranks& ranks) const {
    if (!ranks.empty()) return ranks;
    Ranks all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }

  MPI_Comm group(const Ranks& ranks) {
    const auto found = groups.find(ranks);
    return found != groups.end() ? found->second : groups.emplace(ranks, mpi_make_group(ranks)).first->second;
  }

  /// Gathers `bytes` bytes from every rank of the group, in rank order.
  std::vector<char> gather(const char* name, const Ranks& ranks, const void* data, size_t bytes) {
    const Ranks all = members(ranks);
    std::vector<char> out(bytes * all.size());
    if (all.size() == 1) {
      std::copy_n(static_cast<const char*>(data), bytes, out.data());
      return out;
    }
    const std::string label = ranks.empty() ? "the job" : "host values";
    const Operation operation(name, label, all);
    std::vector<MPI_Request> request(1);
    TE_MPI_CHECK(MPI_Iallgather(data, static_cast<int>(bytes), MPI_BYTE, out.data(), static_cast<int>(bytes),
                                MPI_BYTE, group(all), request.data()));
    mpi_wait(request);
    return out;
  }

  template <class T>
  std::vector<T> gather_values(const char* name, const Ranks& ranks, T value) {
    const std::vector<char> bytes = gather(name, ranks, &value, sizeof(T));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
    return values;
  }

  void start_mpi();
  [[noreturn]] void refuse(const std::string& message);
  void check_thread_level(int provided);
  void stop_mpi();
};

// All ranks have the same result; only rank 0 has the message. MPI_Finalize, in which ranks wait for each other, has to
// come after the message: mpirun ends all ranks as soon as one of them exits with a nonzero code.
void World::State::refuse(const std::string& message) {
  mpi = false;
  std::atexit([] {
    deliver_output();
    MPI_Finalize();
  });
  throw JobFailure(2, rank != 0 ? "" : "error: " + message);
}

void World::State::check_thread_level(int provided) {
  if (provided >= MPI_THREAD_SERIALIZED) return;
  refuse(fmt::format(
      "MPI provides thread level {}, but the watchdog's thread needs {} (MPI_THREAD_SERIALIZED) to "
      "end the job; unset OMPI_MPI_THREAD_LEVEL, or use an MPI that is built with threads",
      provided, static_cast<int>(MPI_THREAD_SERIALIZED)));
}

void World::State::start_mpi() {
#ifdef __SANITIZE_ADDRESS__
  const __lsan::ScopedDisabler mpi_leaks_at_start;  // also in plug-ins that MPI loads and unloads again
#endif
  // The watchdog's thread may abort the job while the main thread waits for a device. They are never in MPI at once.
  int provided = 0;
  TE_MPI_CHECK(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  mpi = true;
  TE_MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  check_thread_level(provided);
  TE_MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  // With the launcher of another MPI, or srun without PMIx, each process would be a job of one rank.
  if (const int announced = announced_processes(); size == 1 && announced > 1)
    refuse(fmt::format(
        "the launcher started {} processes, but MPI sees one: use the mpirun of the MPI that te-train "
        "is built with, or srun --mpi=pmix",
        announced));
  MPI_Comm host = MPI_COMM_NULL;
  TE_MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host));
  TE_MPI_CHECK(MPI_Comm_rank(host, &local_rank));
  TE_MPI_CHECK(MPI_Comm_size(host, &local_size));
  first_local = rank;
  TE_MPI_CHECK(MPI_Bcast(&first_local, 1, MPI_INT, 0, host));
  const int first = local_rank == 0 ? 1 : 0;
  TE_MPI_CHECK(MPI_Allreduce(&first, &hosts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));

  // The first rank of the host allocates the complete status board and zeroes it before any rank writes.
  const size_t bytes = local_rank == 0 ? StatusBoard::bytes(local_size) + 64 : 0;
  char* memory = nullptr;
  TE_MPI_CHECK(
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, host, &memory, &board));
  MPI_Aint size_of_board = 0;
  int unit = 0;
  TE_MPI_CHECK(MPI_Win_shared_query(board, 0, &size_of_board, &unit, &memory));
  if (local_rank == 0) std::fill_n(memory, size_of_board, '\0');
  TE_MPI_CHECK(MPI_Barrier(host));
  const uintptr_t misaligned = reinterpret_cast<uintptr_t>(memory) % 64;
  watchdog::attach_board(memory + (misaligned == 0 ? 0 : 64 - misaligned), local_size, local_rank, rank);
  MPI_Comm_free(&host);
  group(members({}));  // created now because the watchdog does not watch the creation of a group
}

void World::State::stop_mpi() {
  deliver_output();  // mpirun ends the job when the first rank exits with a nonzero code
  watchdog::detach_board();
  for (auto& [ranks, comm] : groups) MPI_Comm_free(&comm);
  MPI_Win_free(&board);
#ifdef __SANITIZE_ADDRESS__
  // Check for leaks now: Open MPI unloads its plug-ins in MPI_Finalize, and then leaks in them can no longer be
  // suppressed by name (tests/testing/mpi_leaks.supp).
  __lsan_do_leak_check();
#endif
  MPI_Finalize();
}

World::World() : state_(std::make_unique<State>()) {
  if (launched()) state_->start_mpi();
}

World::~World() {
  if (!state_->mpi) return;
  // Other ranks may be waiting for this one, so MPI_Finalize might never return.
  if (std::uncaught_exceptions() > state_->exceptions) abort(1);
  state_->stop_mpi();
}

int World::rank() const {
  return state_->rank;
}
int World::size() const {
  return state_->size;
}
int World::local_rank() const {
  return state_->local_rank;
}
int World::local_size() const {
  return state_->local_size;
}
int World::hosts() const {
  return state_->hosts;
}
int World::first_local() const {
  return state_->first_local;
}
const std::string& World::hostname() const {
  return state_->hostname;
}

int64_t World::sum_i64(int64_t value, const Ranks& ranks) {
  const std::vector<int64_t> values = state_->gather_values("sum", ranks, value);
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int64_t World::max_i64(int64_t value, const Ranks& ranks) {
  const std::vector<int64_t> values = state_->gather_values("max", ranks, value);
  return *std::ranges::max_element(values);
}

int64_t World::min_i64(int64_t value, const Ranks& ranks) {
  const std::vector<int64_t> values = state_->gather_values("min", ranks, value);
  return *std::ranges::min_element(values);
}

double World::sum_f64(double value, const Ranks& ranks) {
  const std::vector<double> values = state_->gather_values("sum", ranks, value);
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double World::max_f64(double value, const Ranks& ranks) {
  const std::vector<double> values = state_->gather_values("max", ranks, value);
  return *std::ranges::max_element(values);
}

std::string World::broadcast_string(const std::string& text, const Ranks& ranks, int root) {
  const Ranks all = state_->members(ranks);
  TE_CHECK(root >= 0 && root < static_cast<int>(all.size()), "broadcast from rank {} of {}", root,
           all.size());
  const bool sender = all[static_cast<size_t>(root)] == rank();
  return gather_strings(sender ? text : "", ranks)[static_cast<size_t>(root)];
}

std::vector<std::string> World::gather_strings(const std::string& text, const Ranks& ranks) {
  // Texts are short, so they are padded to the length of the longest one.
  const auto length = static_cast<int64_t>(text.size());
  const std::vector<int64_t> lengths = state_->gather_values("gather", ranks, length);
  const auto longest = static_cast<size_t>(*std::ranges::max_element(lengths));
  TE_CHECK(longest < size_t{1} << 30, "gather_strings with a text of {} bytes", longest);
  std::string padded = text;
  padded.resize(longest);
  const std::vector<char> bytes = state_->gather("gather", ranks, padded.data(), longest);
  std::vector<std::string> texts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    texts.emplace_back(bytes.data() + i * longest, static_cast<size_t>(lengths[i]));
  }
  return texts;
}

void World::barrier(const Ranks& ranks) {
  state_->gather_values("barrier", ranks, char{0});
}

void World::run_collectively(const std::function<void()>& fn) {
  if (size() == 1) return fn();
  std::string report;  // exit code and message; empty on success
  try {
    fn();
  } catch (const JobFailure& failure) {
    report = fmt::format("{} {}", failure.exit_code(), failure.what());
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    report = fmt::format("{} {}", failure.exit_code, failure.message);
  }
  const std::vector<std::string> reports = gather_strings(report);
  std::map<std::string, Ranks> failures;
  for (int other = 0; other < size(); ++other) {
    if (!reports[static_cast<size_t>(other)].empty())
      failures[reports[static_cast<size_t>(other)]].push_back(other);
  }
  if (failures.empty()) return;
  int exit_code = 0;
  std::string message;
  for (const auto& [text, ranks] : failures) {
    const int code = std::atoi(text.c_str());
    exit_code = exit_code == 0 ? code : std::min(exit_code, code);  // internal errors (1) have priority
    if (!message.empty()) message += '\n';
    if (static_cast<int>(ranks.size()) < size()) {
      message += fmt::format("rank{} {}: ", ranks.size() == 1 ? "" : "s", list_ranks(ranks));
    }
    message += text.substr(text.find(' ') + 1);
  }
  throw JobFailure(exit_code, message);
}

std::string World::from_leader(const std::function<std::string()>& fn) {
  std::string text;
  run_collectively([&] {
    if (leader()) text = fn();
  });
  return broadcast_string(text);
}

void World::abort(int exit_code) {
  announce_job_end();
  deliver_output();
  if (mpi_running()) {
    // If MPI itself hangs, the alarm ends this process, and then the launcher ends the others.
    std::signal(SIGALRM, SIG_DFL);
    alarm(10);
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

int run_job(const char* program, int (*body)(World&, int, char**), int argc, char** argv) {
  std::unique_ptr<World> world;
  try {
    world = std::make_unique<World>();
    use_threads(threads_of_rank(*world));
    return body(*world, argc, argv);
  } catch (const JobFailure& failure) {
    if (world == nullptr || world->leader()) {
      std::string line;
      const std::string text = failure.what();
      for (size_t begin = 0; begin < text.size(); begin += line.size() + 1) {
        line = text.substr(begin, text.find('\n', begin) - begin);
        std::fprintf(stderr, "%s: %s\n", program, printable(line).c_str());
      }
    }
    return failure.exit_code();
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    const bool alone = world == nullptr || world->size() == 1;
    const std::string who = alone ? "" : fmt::format("rank {}: ", world->rank());
    std::fprintf(stderr, "%s: %s%s\n", program, who.c_str(), printable(failure.message).c_str());
    if (!alone) World::abort(failure.exit_code);
    return failure.exit_code;
  }
}

}  // namespace te::parallel
