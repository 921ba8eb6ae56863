// The search for a GEMM's algorithm beside work on other streams.
#ifdef TE_WITH_CUDA
#include "kernels/gemm/gemm_tune.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "testing/eventually.h"
#include "testing/testing.h"

namespace te::kernels::cuda {
namespace {

// A message there may end only when other ranks go on, and these may wait for the search to end.
TEST(GemmSearchGpu, WaitsForItsOwnStreamAlone) {
  TE_REQUIRE_GPU();
  const Context gpu = Context::cuda(0), other = gpu.side();
  const auto stream = static_cast<cudaStream_t>(gpu.stream());
  const DeviceBuffer out(gpu, 1 << 20);
  const auto run = [&](int candidate) {
    return cudaMemsetAsync(out.data(), candidate, out.bytes(), stream) == cudaSuccess;
  };
  fastest_candidate(stream, 2, {.budget_ms = 1000}, run);  // the memory's first use may wait

  std::atomic<bool> ended{false}, searched{false};
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  ASSERT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(other.stream()), wait, &ended), cudaSuccess);
  const std::jthread rescue([&] {  // a search that does wait fails the test instead of hanging it
    te::testing::eventually([&] { return searched.load(); }, std::chrono::seconds(20));
    ended = true;
    other.synchronize();  // behind it nobody reads the flag
  });
  {
    const TuneScratch scratch(stream, 64 << 20);
    EXPECT_NE(scratch.data(), nullptr);
    fastest_candidate(stream, 2, {.budget_ms = 1000}, run);
  }
  EXPECT_FALSE(ended) << "the search ended when the work of the other stream did";
  searched = true;
}

}  // namespace
}  // namespace te::kernels::cuda
#endif
