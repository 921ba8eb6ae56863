// main() of tests under mpirun. Rank 0 prints as usual, the other ranks print only failures; the run fails if any rank
// fails. If a rank leaves a test early, the others wait for it in the next operation until the watchdog ends the job.
#include <cstdio>
#include <string>

#include "parallel/launch.h"
#include "parallel/watchdog.h"
#include "testing/mpi.h"

namespace te::testing {
namespace {

constexpr double kTimeout = 60;
constexpr int kSkipped = 77;
parallel::World* the_world = nullptr;

class FailurePrinter : public ::testing::EmptyTestEventListener {
  // GoogleTest holds its lock while it reports a failure, so the test's name is stored before.
  void OnTestStart(const ::testing::TestInfo& test) override {
    test_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s: %s:%d: %s\n", world().rank(), test_.c_str(),
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.summary());
  }
  std::string test_;
};

/// GPU tests need one device per rank of a host, or one device that the ranks share.
bool enough_devices() {
#ifdef TE_MPI_TESTS_NEED_GPUS
  const int wanted = parallel::ranks_share_gpus() ? 1 : world().local_size();
  const int64_t missing = world().max_i64(wanted - cuda_device_count());
  if (missing > 0 && world().leader()) {
    std::printf("[  SKIPPED ] %d ranks per host, %ld GPUs too few\n", world().local_size(),
                static_cast<long>(missing));
  }
  return missing <= 0;
#else
  return true;
#endif
}

int run_tests(parallel::World& job, int argc, char** argv) {
  the_world = &job;
  parallel::Watchdog::set_timeout(kTimeout);
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (!job.leader()) delete listeners.Release(listeners.default_result_printer());
  if (!job.leader()) listeners.Append(new FailurePrinter);
  if (!enough_devices()) return kSkipped;
  const int failed = RUN_ALL_TESTS();
  return static_cast<int>(job.max_i64(failed));
}

}  // namespace

parallel::World& world() {
  return *the_world;
}

}  // namespace te::testing

int main(int argc, char** argv) {
  return te::parallel::run_job("test", te::testing::run_tests, argc, argv);
}
