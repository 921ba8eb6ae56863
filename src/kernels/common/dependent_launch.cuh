// Programmatic dependent launch (CUDA C++ programming guide): a kernel that is launched with launch_dependent() may
// start while the one before it on the stream still runs, and waits at wait_on_dependent_grids() for its end. Until
// then it may read only what was complete before that kernel began. It starts when every block of the earlier kernel
// has ended or called launch_dependent_grids().
//
// Kernels launched as usual wait for the end of all earlier ones in any case; launch_dependent_grids() in them does
// nothing unless a kernel of the first kind follows.
#pragma once

#include "core/cuda_check.h"

namespace te::kernels {

__device__ __forceinline__ void wait_on_dependent_grids() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void launch_dependent_grids() {
  asm volatile("griddepcontrol.launch_dependents;");
}
/// When a value that was loaded is there.
__device__ __forceinline__ void launch_dependent_grids_after(uint32_t loaded) {
  asm volatile("{\n.reg .b32 there;\nmov.b32 there, %0;\ngriddepcontrol.launch_dependents;\n}\n" ::"r"(loaded)
               : "memory");
}

/// What generation works on: rows so few that launching a kernel takes as long as its work.
constexpr int64_t kLaunchBoundRows = 8;

/// `early`: before the kernel in front of it has ended.
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
