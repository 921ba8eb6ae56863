#include "kernels/gemm/gemm_tune.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/cuda_check.h"

namespace te::kernels::cuda {
namespace {

constexpr int kRounds = 3;
constexpr float kRoundMs = 1.0f;  ///< time one candidate gets in a round
constexpr int kMaxLaunches = 20;  ///< launches one candidate gets in a round
constexpr float kClearlyFaster = 0.98f;

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    TE_CUDA_CHECK(cudaEventCreate(&begin_));
    TE_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds of `launches` calls, each of which must succeed; infinite when one does not.
  float measure(int launches, int candidate, const std::function<bool(int)>& run) {
    TE_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    bool good = true;
    for (int i = 0; i < launches && good; ++i) good = run(candidate);
    TE_CUDA_CHECK(cudaEventRecord(end_, stream_));
    TE_CUDA_CHECK(cudaEventSynchronize(end_));
    if (!good) return std::numeric_limits<float>::infinity();
    float ms = 0.0f;
    TE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms / static_cast<float>(launches);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

TuneScratch::TuneScratch(size_t bytes) {
  if (bytes > 0 && cudaMalloc(&data_, bytes) != cudaSuccess) {
    cudaGetLastError();  // no memory is an answer here, not an error
    data_ = nullptr;
  }
}

TuneScratch::~TuneScratch() {
  if (data_ != nullptr) cudaFree(data_);
}

int fastest_candidate(cudaStream_t stream, int count, const std::function<bool(int)>& run) {
  Stopwatch watch(stream);
  std::vector<float> times(static_cast<size_t>(count), std::numeric_limits<float>::infinity());
  std::vector<int> launches(static_cast<size_t>(count), 0);  // 0: the candidate does not run
  for (int i = 0; i < count; ++i) {
    if (!run(i)) continue;  // also loads the kernel
    const float ms = std::max(watch.measure(1, i, run), 1e-3f);
    launches[static_cast<size_t>(i)] = std::clamp(static_cast<int>(kRoundMs / ms), 1, kMaxLaunches);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      if (launches[at] > 0) times[at] = std::min(times[at], watch.measure(launches[at], i, run));
    }
  }
  const auto best = std::min_element(times.begin(), times.end());
  return *best < kClearlyFaster * times.front() ? static_cast<int>(best - times.begin()) : 0;
}

}  // namespace te::kernels::cuda
