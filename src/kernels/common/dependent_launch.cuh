// Programmatic dependent launch (CUDA C++ programming guide). A kernel launched with launch_dependent() may start while
// the preceding kernel on the CUDA stream still runs, and waits for its end at wait_on_dependent_grids(). Before that
// it may read only what was complete before the preceding kernel began. It starts when every block of the preceding
// kernel has exited or called launch_dependent_grids().
//
// Kernels that are launched normally always wait for the end of all earlier ones. In such a kernel,
// launch_dependent_grids() has no effect unless a kernel launched with launch_dependent() follows.
#pragma once

#include "core/cuda_check.h"

namespace te::kernels {

__device__ __forceinline__ void wait_on_dependent_grids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void launch_dependent_grids() {
  asm volatile("griddepcontrol.launch_dependents;");
}
/// Launches dependent grids after a loaded value has arrived.
__device__ __forceinline__ void launch_dependent_grids_after(uint32_t loaded) {
  asm volatile("{\n.reg .b32 there;\nmov.b32 there, %0;\ngriddepcontrol.launch_dependents;\n}\n" ::"r"(loaded)
               : "memory");
}

/// Up to this number of rows, as in generation, launching a kernel takes as long as its work.
constexpr int64_t kLaunchBoundRows = 8;

/// `early`: the kernel may start before the preceding kernel has ended.
template <class... Params, class... Args>
void launch_dependent(const Context& context, void (*kernel)(Params...), dim3 grid, dim3 block,
                      size_t shared_bytes, bool early, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = cuda_stream(context);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  TE_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
  TE_CUDA_CHECK_LAUNCH();
}

}  // namespace te::kernels
