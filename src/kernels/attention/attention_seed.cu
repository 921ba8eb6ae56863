// Writes the two scalars that cuDNN's dropout generator reads from device memory.
#include "kernels/attention/attention_seed.h"
#include "kernels/common/cuda_common.cuh"

namespace te::kernels::cuda {
namespace {

__global__ void set_seed_kernel(int64_t* destination, int64_t seed) {
  destination[0] = seed;
  destination[1] = 0;
}

}  // namespace

void set_attention_seed(const Context& context, int64_t* destination, uint64_t seed) {
  // Kernel arguments are copied at launch, so unlike with a memory copy no host buffer has to stay alive.
  set_seed_kernel<<<1, 1, 0, cuda_stream(context)>>>(destination, static_cast<int64_t>(seed));
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::cuda
