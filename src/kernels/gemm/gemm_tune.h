// Timing of the algorithm candidates of one problem on the device. Private to the CUDA GEMM.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace te::kernels::cuda {

/// Device memory for the duration of a measurement, with stream-ordered allocation. data() is null if no bytes were
/// requested or the device has no memory left.
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
  /// Bytes that one call reads and writes. If the L2 cache can hold them, each run is timed with other data in the
  /// cache, since in a training step the operands are not cached either.
  size_t working_set = 0;
  /// Milliseconds of host time after which no further candidate is tried (loading a kernel may take several).
  double budget_ms = 0;
  /// Measure each candidate for a tenth of a second, at a clock limited by its own power draw, instead of in bursts of
  /// a millisecond at the highest clock.
  bool under_load = false;
};

/// Index of the fastest of `count` candidates. run(i) launches candidate i on the CUDA stream and returns whether it
/// succeeded. Every candidate is timed once; those close to the best compete in several rounds. Candidate 0 is kept
/// unless another one is clearly faster, so that noise rarely changes the choice. Synchronizes with the CUDA stream.
int fastest_candidate(cudaStream_t stream, int count, const TuneOptions& options,
                      const std::function<bool(int)>& run);

}  // namespace te::kernels::cuda
