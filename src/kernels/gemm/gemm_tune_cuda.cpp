#include "kernels/gemm/gemm_tune.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "core/cuda_check.h"

namespace te::kernels::cuda {
namespace {

constexpr int kRounds = 3;
constexpr float kRoundMs = 1.0f;  ///< time per candidate and round
constexpr int kMaxLaunches = 20;  ///< launches per candidate and round
constexpr float kNearTheBest =
    1.1f;  ///< limit for a single launch, relative to the best, to enter the rounds
constexpr float kClearlyFaster = 0.99f;
// Under load: long enough that the GPU's power limit has settled the clock for this candidate, not an earlier one.
constexpr float kNearTheBestUnderLoad = 1.2f;
constexpr float kSettleMs = 40.0f;
constexpr float kLoadedMs = 80.0f;
constexpr int kLoadedRounds = 2;
static_assert(
    kLoadedRounds % 2 == 0,
    "rounds alternate the candidates' order, and the first candidate is identified by its position");
constexpr int kMaxLoadedLaunches = 400;  ///< GEMMs that are this short do not heat the GPU
constexpr size_t kCacheFills = 4;        ///< a working set of this many L2 caches evicts itself

size_t l2_bytes() {
  int device = 0, bytes = 0;
  TE_CUDA_CHECK(cudaGetDevice(&device));
  TE_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
  return static_cast<size_t>(bytes);
}

class Stopwatch {
 public:
  Stopwatch(cudaStream_t stream, const TuneScratch& other_data) : stream_(stream), other_data_(other_data) {
    TE_CUDA_CHECK(cudaEventCreate(&begin_));
    TE_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds per call, averaged over `launches` launches; infinite if any of them fails.
  float measure(int launches, int candidate, const std::function<bool(int)>& run) {
    if (other_data_.data() == nullptr) return batch(launches, candidate, run) / static_cast<float>(launches);
    float sum = 0.0f;
    for (int i = 0; i < launches; ++i) {
      TE_CUDA_CHECK(cudaMemsetAsync(other_data_.data(), i, other_data_.bytes(), stream_));
      sum += batch(1, candidate, run);
    }
    return sum / static_cast<float>(launches);
  }

 private:
  float batch(int launches, int candidate, const std::function<bool(int)>& run) {
    TE_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    bool good = true;
    for (int i = 0; i < launches && good; ++i) good = run(candidate);
    TE_CUDA_CHECK(cudaEventRecord(end_, stream_));
    TE_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0.0f;
    TE_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return good ? ms : std::numeric_limits<float>::infinity();
  }

  cudaStream_t stream_;
  const TuneScratch& other_data_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// (milliseconds of one launch, index) of the candidates that run, within the time budget; candidate 0 is first.
std::vector<std::pair<float, int>> try_all(Stopwatch& watch, int count, double budget_ms,
                                           const std::function<bool(int)>& run) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::pair<float, int>> tried;
  for (int i = 0; i < count; ++i) {
    const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
    if (i > 0 && spent.count() > budget_ms) break;
    if (run(i)) tried.emplace_back(watch.measure(1, i, run), i);  // the first launch also loads the kernel
  }
  return tried;
}

/// Measures the time of each candidate (the best of several short rounds). Rounds interleave the candidates, so that a
/// change of the clock affects all of them.
void race(Stopwatch& watch, float about_ms, std::vector<std::pair<float, int>>& candidates,
          const std::function<bool(int)>& run) {
  const int launches = std::clamp(static_cast<int>(kRoundMs / std::max(about_ms, 1e-3f)), 1, kMaxLaunches);
  for (auto& [ms, i] : candidates) ms = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round)
    for (auto& [ms, i] : candidates) ms = std::min(ms, watch.measure(launches, i, run));
}

/// Like race(), but measures each candidate after it has run for a while. A power-limited GPU lowers the clock until it
/// meets the limit, so a GEMM's energy determines its speed in training, which a short burst does not show. Rounds
/// alternate the order, so that drift (of the temperature) affects all candidates equally.
void race_under_load(Stopwatch& watch, float about_ms, std::vector<std::pair<float, int>>& candidates,
                     const std::function<bool(int)>& run) {
  const auto launches = [&](float ms) {
    return std::clamp(static_cast<int>(ms / std::max(about_ms, 1e-3f)), 1, kMaxLoadedLaunches);
  };
  watch.measure(launches(kLoadedMs), candidates.front().second, run);
  for (auto& [ms, i] : candidates) ms = 0.0f;
  for (int round = 0; round < kLoadedRounds; ++round) {
    for (auto& [ms, i] : candidates) {
      watch.measure(launches(kSettleMs), i, run);
      ms += watch.measure(launches(kLoadedMs), i, run) / kLoadedRounds;
    }
    std::ranges::reverse(candidates);
  }
}

}  // namespace

TuneScratch::TuneScratch(cudaStream_t stream, size_t bytes) : stream_(stream), bytes_(bytes) {
  if (bytes > 0 && cudaMallocAsync(&data_, bytes, stream) != cudaSuccess) {
    cudaGetLastError();  // running out of memory is not an error here
    data_ = nullptr;
  }
}

TuneScratch::~TuneScratch() {
  if (data_ != nullptr) cudaFreeAsync(data_, stream_);
}

int fastest_candidate(cudaStream_t stream, int count, const TuneOptions& options,
                      const std::function<bool(int)>& run) {
  const size_t cache = l2_bytes();
  const TuneScratch other_data(stream, options.working_set < kCacheFills * cache ? 2 * cache : 0);
  Stopwatch watch(stream, other_data);
  const std::vector<std::pair<float, int>> tried = try_all(watch, count, options.budget_ms, run);
  if (tried.empty()) return 0;
  const float limit =
      (options.under_load ? kNearTheBestUnderLoad : kNearTheBest) * std::ranges::min_element(tried)->first;
  std::vector<std::pair<float, int>> best;
  for (const auto& [ms, i] : tried)
    if (ms <= limit || i == 0) best.emplace_back(0.0f, i);
  options.under_load ? race_under_load(watch, limit, best, run) : race(watch, limit, best, run);
  const auto winner = std::ranges::min_element(best);
  const bool first_runs = best.front().second == 0;
  return first_runs && winner->first >= kClearlyFaster * best.front().first ? 0 : winner->second;
}

}  // namespace te::kernels::cuda
