// Programmatic dependent launch (CUDA C++ programming guide). A kernel launched with launch_dependent() may start while
// the preceding kernel on the CUDA stream still runs, and waits for its end at wait_on_dependent_grids(). Before that
// it may read only what was complete before the preceding kernel began. It starts when every block of the preceding
// kernel has exited or called launch_dependent_grids().
//
// Kernels that are launched normally always wait for the end of all earlier ones. In such a kernel,
// launch_dependent_grids() has no effect unless a kernel launched with launch_dependent() follows.
#pragma once

#include "core/cuda_check.h"
#include "core/device_caps.h"

namespace te::kernels {

// GPUs before 9.0 have no such launches: there the device functions do nothing, and launch_dependent() is an ordinary
// launch.
__device__ __forceinline__ void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Launches dependent grids after a loaded value has arrived.
__device__ __forceinline__ void launch_dependent_grids_after([[maybe_unused]] uint32_t loaded) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{\n.reg .b32 there;\nmov.b32 there, %0;\ngriddepcontrol.launch_dependents;\n}\n" ::"r"(loaded)
               : "memory");
#endif
}

/// Up to this number of rows, as in generation, launching a kernel takes as long as its work.
constexpr int64_t kLaunchBoundRows = 8;

/// `early`: the kernel may start before the preceding kernel has ended. `cluster`: blocks per cluster; more than one
/// only if the GPU has clusters.
template <class... Params, class... Args>
void launch_dependent_clusters(const Context& context, void (*kernel)(Params...), dim3 grid, dim3 block,
                               size_t shared_bytes, bool early, unsigned cluster, const Args&... args) {
  const DeviceCaps& caps = device_caps(context);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = cuda_stream(context);
  config.attrs = attributes;
  if (early && caps.dependent_launch) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    TE_CHECK(caps.clusters, "{} has no thread block clusters", caps.gpu);
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {.x = cluster, .y = 1, .z = 1};
  }
  TE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
  TE_CUDA_CHECK_LAUNCH();
}

template <class... Params, class... Args>
void launch_dependent(const Context& context, void (*kernel)(Params...), dim3 grid, dim3 block,
                      size_t shared_bytes, bool early, const Args&... args) {
  launch_dependent_clusters(context, kernel, grid, block, shared_bytes, early, 1, args...);
}

}  // namespace te::kernels
