// The search for a GEMM's algorithm during work on other CUDA streams.
#ifdef TE_WITH_CUDA
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "kernels/gemm/gemm.h"
#include "testing/eventually.h"
#include "testing/temporary_folder.h"
#include "testing/testing.h"

namespace te::kernels {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Whether no process holds a search lock of the folder's caches.
bool lock_is_free(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".search") continue;
    const int file = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    const bool free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
    ::close(file);
    if (!free) return false;
  }
  return true;
}

// A collective on another CUDA stream ends only after other ranks have launched theirs, and these may wait for the
// lock. A rank that holds it must have no outstanding work on its device, because loading a candidate's kernel may wait
// for all CUDA streams.
TEST(GemmSearchGpu, FinishesDeviceWorkBeforeAcquiringTheLock) {
  TE_REQUIRE_GPU();
  const testing::TemporaryFolder folder;
  ASSERT_EQ(::setenv("TE_GEMM_CACHE", folder.path().c_str(), 1), 0);  // before the process's first GEMM
  const Context gpu = Context::cuda(0), other = gpu.side();
  const int64_t size = 16 * 83;
  testing::TestTensor a(gpu, DType::bf16, {size, size}), b(gpu, DType::bf16, {size, size});
  testing::TestTensor out(gpu, DType::bf16, {size, size});
  a.fill_normal(1);
  b.fill_normal(2);
  std::atomic<bool> ended{false}, searched{false};
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::sleep_for(1ms);
  };
  ASSERT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(other.stream()), wait, &ended), cudaSuccess);
  {
    const std::jthread rank([&] {
      gemm(gpu, {.a = {a.get()}, .b = {b.get()}, .out = out, .trans_b = true});
      gpu.synchronize();
      searched = true;
    });
    EXPECT_FALSE(testing::eventually([&] { return searched.load(); }, 3s))
        << "the search did not wait for the other CUDA stream";
    EXPECT_TRUE(lock_is_free(folder.path())) << "the lock is held while the device waits";
    ended = true;
  }
  other.synchronize();  // nothing reads the flag after this
  EXPECT_TRUE(searched);
}

}  // namespace
}  // namespace te::kernels
#endif
