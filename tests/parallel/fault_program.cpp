// A job in which the last rank or all ranks fail in the way that the argument names. See faults_test.cpp.
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "parallel/groups.h"
#include "parallel/operation.h"
#include "parallel/watchdog.h"
#include "parallel/world.h"

namespace te::parallel {
namespace {

void sleep_forever() {
  std::this_thread::sleep_for(std::chrono::hours(1));
}

/// The last rank's fault, in the third of five steps.
void misbehave(const std::string& how) {
  const ScopedActivity activity("mischief");
  if (how == "killed") std::raise(SIGKILL);
  if (how == "stopped") std::raise(SIGSTOP);
  if (how == "hung") sleep_forever();
  if (how == "user_error") user_error("data.train: no such file");
  if (how == "internal_error") TE_CHECK(false, "weights are gone");
}

/// Phases whose failure is collective.
void fail_collectively(World& world, const std::string& how) {
  const bool last = world.rank() == world.size() - 1;
  world.run_collectively([&] {
    if (how == "all_refuse") user_error("parallel.tensor: 3 does not divide 4 heads");
    if (how == "last_refuses" && last) user_error("data.train: no such file");
    if (how == "two_reasons") user_error("{}", last ? "disk: full" : "memory: full");
  });
}

int body(World& world, int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "";
  const bool last = world.rank() == world.size() - 1;
  const bool waits = how == "hung" || how == "stopped" || how == "device_hangs" || how == "mismatch";
  Watchdog::set_timeout(waits ? 3 : 0);
  fail_collectively(world, how);
  if (how == "code_three") return 3;
  if (how == "device_hangs") {  // as a Guard around a wait for a GPU
    watchdog::arm("step 12");
    sleep_forever();
  }

  const Context cpu = Context::cpu();
  const Groups groups = Groups::connect(world, cpu, ProcessGrid::of(world.size(), 1, 1, 1));
  float value = 1;
  for (int step = 0; step < 5; ++step) {
    const ScopedActivity activity("step " + std::to_string(step));
    if (step == 2 && last) misbehave(how);
    if (step == 2 && how == "mismatch") {  // the last rank gathers less than the others
      const int64_t count = last ? 1 : 2;
      std::vector<float> in(2), out(2 * static_cast<size_t>(world.size()));
      groups.data().all_gather(cpu, {in.data(), DType::f32, {count}},
                               {out.data(), DType::f32, {world.size() * count}});
    }
    groups.data().all_reduce(cpu, {&value, DType::f32, {1}}, ReduceOp::max);
  }
  if (world.leader()) std::printf("done, %d ranks, hosts %d\n", world.size(), world.hosts());
  return 0;
}

}  // namespace
}  // namespace te::parallel

static bool mpi_has_no_threads = false;

/// MPI's function, or a fake one of an MPI that is built without threads.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int result = PMPI_Init_thread(argc, argv, required, provided);
  if (mpi_has_no_threads) *provided = MPI_THREAD_SINGLE;
  return result;
}

int main(int argc, char** argv) {
  mpi_has_no_threads = argc > 1 && std::string(argv[1]) == "no_threads";
  return te::parallel::run_job("fault", te::parallel::body, argc, argv);
}
