// Times the candidates of one problem on the device. Private to the CUDA matrix product.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>

namespace te::kernels::cuda {

/// Device memory for the time of a measurement; data() is null when none was asked for or the device has no
/// more.
class TuneScratch {
 public:
  explicit TuneScratch(size_t bytes);
  ~TuneScratch();
  TuneScratch(const TuneScratch&) = delete;
  TuneScratch& operator=(const TuneScratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

/// Index of the fastest of `count` candidates. run(i) launches candidate i on the stream and says whether it
/// could. Candidate 0 is kept unless another is clearly faster, so that noise rarely changes the choice.
/// Waits for the stream.
int fastest_candidate(cudaStream_t stream, int count, const std::function<bool(int)>& run);

}  // namespace te::kernels::cuda
