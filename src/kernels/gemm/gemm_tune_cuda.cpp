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
constexpr float kRoundMs = 1.0f;      ///< time one candidate gets in a round
constexpr int kMaxLaunches = 20;      ///< launches one candidate gets in a round
constexpr float kNearTheBest = 1.1f;  ///< of a single launch: who comes into the rounds
constexpr float kClearlyFaster = 0.99f;
// Under load: long enough that the card's power limit has set the clock for this candidate and none before it.
constexpr float kNearTheBestUnderLoad = 1.2f;
constexpr float kSettleMs = 40.0f;
constexpr float kLoadedMs = 80.0f;
constexpr int kLoadedRounds = 2;
static_assert(kLoadedRounds % 2 == 0,
              "a round reverses the candidates' order, and the first one is told by its place");
constexpr int kMaxLoadedLaunches = 400;  ///< GEMMs so short that this ends their time do not heat the card
constexpr size_t kCacheFills = 4;        ///< a working set of so many L2 caches evicts itself

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

  /// Milliseconds of a call, mean of `launches`, each of which must succeed; infinite when one does not.
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

/// (milliseconds of one launch, index) of those that run, as far as the budget goes; candidate 0 is first.
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

/// Fills in the time of each (its best of several short rounds). Rounds interleave the candidates, so that a change of
/// the clock meets them all.
void race(Stopwatch& watch, float about_ms, std::vector<std::pair<float, int>>& candidates,
          const std::function<bool(int)>& run) {
  const int launches = std::clamp(static_cast<int>(kRoundMs / std::max(about_ms, 1e-3f)), 1, kMaxLaunches);
  for (auto& [ms, i] : candidates) ms = std::numeric_limits<float>::infinity();
  for (int round = 0; round < kRounds; ++round)
    for (auto& [ms, i] : candidates) ms = std::min(ms, watch.measure(launches, i, run));
}

/// The same for the time that a candidate takes when it has run for a while. A card at its power limit lowers the clock
/// until the limit is met, so what counts in training is the energy of a GEMM, and a burst does not show it. There
/// and back again, so that what drifts (the temperature) meets all alike.
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
    std::reverse(candidates.begin(), candidates.end());
  }
}

}  // namespace

TuneScratch::TuneScratch(cudaStream_t stream, size_t bytes) : stream_(stream), bytes_(bytes) {
  if (bytes > 0 && cudaMallocAsync(&data_, bytes, stream) != cudaSuccess) {
    cudaGetLastError();  // no memory is an answer here, not an error
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
  const float limit = (options.under_load ? kNearTheBestUnderLoad : kNearTheBest) *
                      std::min_element(tried.begin(), tried.end())->first;
  std::vector<std::pair<float, int>> best;
  for (const auto& [ms, i] : tried)
    if (ms <= limit || i == 0) best.emplace_back(0.0f, i);
  options.under_load ? race_under_load(watch, limit, best, run) : race(watch, limit, best, run);
  const auto winner = std::min_element(best.begin(), best.end());
  const bool first_runs = best.front().second == 0;
  return first_runs && winner->first >= kClearlyFaster * best.front().first ? 0 : winner->second;
}

}  // namespace te::kernels::cuda
