// The architecture of the compiled code that runs on a GPU.
#include "core/cuda_check.h"
#include "core/device_backend.h"

namespace te::cuda_backend {

namespace {
__global__ void probe_kernel() {}
}  // namespace

int compiled_architecture(int ordinal) {
  int current = 0;
  TE_CUDA_CHECK(cudaGetDevice(&current));
  TE_CUDA_CHECK(cudaSetDevice(ordinal));
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  TE_CUDA_CHECK(cudaSetDevice(current));
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorUnsupportedPtxVersion) {
    cudaGetLastError();
    return 0;
  }
  TE_CUDA_CHECK(status);
  return attributes.ptxVersion;
}

}  // namespace te::cuda_backend
