// Error checks for CUDA calls and kernel launches. For CUDA sources only.
#pragma once

#include <cuda_runtime.h>

#include "core/device.h"
#include "core/error.h"

namespace te {

inline cudaStream_t cuda_stream(const Context& context) {
  return static_cast<cudaStream_t>(context.stream());
}

}  // namespace te

/// Checks a CUDA runtime call.
#define TE_CUDA_CHECK(call)                                                             \
  do {                                                                                  \
    const cudaError_t te_status = (call);                                               \
    if (te_status != cudaSuccess) [[unlikely]]                                          \
      ::te::internal_error(fmt::format("{}: {}", #call, cudaGetErrorString(te_status)), \
                           std::source_location::current());                            \
  } while (false)

/// Checks the preceding kernel launch.
#define TE_CUDA_CHECK_LAUNCH() TE_CUDA_CHECK(cudaGetLastError())
