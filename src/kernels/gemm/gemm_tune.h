// Times the candidates of one problem on the device. Private to the CUDA GEMM.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace te::kernels::cuda {

/// Device memory for the time of a measurement, allocated and freed in the stream's order; data() is null when none was
/// asked for or the device has no more.
class TuneScratch {
 public:
  TuneScratch(cudaStream_t stream, size_t bytes);
  ~TuneScratch();
  TuneScratch(const TuneScratch&) = delete;
  TuneScratch& operator=(const TuneScratch&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return data_ == nullptr ? 0 : bytes_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
  size_t bytes_;
};

struct TuneOptions {
  /// Bytes that one call reads and writes. What does not fill the L2 cache several times is timed with other
  /// data in the cache, since in a step its operands are not there either.
  size_t working_set = 0;
  /// Host milliseconds after which no further candidate is tried (loading a kernel takes some of them).
  double budget_ms = 0;
  /// Measure each candidate for a tenth of a second, at the clock that its own power draw allows, instead of in bursts
  /// of a millisecond at the highest clock.
  bool under_load = false;
};

/// Index of the fastest of `count` candidates. run(i) launches candidate i on the stream and says whether it
/// could. Every candidate is timed once; those near the best compete in several rounds. Candidate 0 is kept
/// unless another is clearly faster, so that noise rarely changes the choice. Waits for the stream.
int fastest_candidate(cudaStream_t stream, int count, const TuneOptions& options,
                      const std::function<bool(int)>& run);

}  // namespace te::kernels::cuda
