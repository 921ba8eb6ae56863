// Launches of persistent kernels: dynamic shared memory, clusters, as many blocks as run at a time.
#pragma once

#include <algorithm>

#include "kernels/hopper/roles.cuh"

namespace te::kernels::hopper {

/// Launches kKernel, whose dynamic shared memory is a Shared, with `most` clusters of kCluster blocks, or as many as
/// run at a time if that is less. What is asked of the driver is asked once: a process computes on one device.
template <auto kKernel, class Shared, int kCluster = 1, class... Args>
void launch_persistent(const Context& context, int most, const Args&... args) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = kCluster, .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = cuda_stream(context);
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  static const int at_once = [&] {
    TE_CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
    if (kCluster == 1) return sm_count(context);
    // Fewer than there are multiprocessors for, where these are not grouped in whole clusters.
    int count = 0;
    TE_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kKernel, &config));
    TE_CHECK(count > 0, "no cluster of {} blocks with {} bytes of shared memory fits this device", kCluster,
             sizeof(Shared));
    return count;
  }();
  config.gridDim = dim3(std::min(at_once, most) * kCluster);
  TE_CUDA_CHECK(cudaLaunchKernelEx(&config, kKernel, args...));
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::hopper
