// Launches of persistent kernels: dynamic shared memory, clusters, number of resident blocks.
#pragma once

#include <algorithm>

#include "kernels/hopper/roles.cuh"

namespace te::kernels::hopper {

/// Launches kKernel, whose dynamic shared memory is a `Shared`, with at most `most` clusters of kCluster blocks, and at
/// most as many as can be resident. The driver is queried only once, because a process uses one device.
template <auto kKernel, class Shared, int kCluster = 1, class... Args>
void launch_persistent(const Context& context, int max_blocks, const Args&... args) {
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
    // May be fewer than the SMs would allow, if these are not grouped into whole clusters.
    int count = 0;
    TE_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kKernel, &config));
    TE_CHECK(count > 0, "this device cannot run a cluster of {} blocks with {} bytes of shared memory",
             kCluster, sizeof(Shared));
    return count;
  }();
  config.gridDim = dim3(std::min(at_once, max_blocks) * kCluster);
  TE_CUDA_CHECK(cudaLaunchKernelEx(&config, kKernel, args...));
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels::hopper
