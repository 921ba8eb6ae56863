// Functions of the CUDA driver, found through the runtime because te-train does not link to the driver's library. For
// CUDA sources only.
#pragma once

#include <cuda.h>

#include "core/cuda_check.h"

namespace te::parallel {

/// `Function` is the type in cudaTypedefs.h: PFN_NAME_vVERSION.
template <class Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  TE_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
#else
  TE_CUDA_CHECK(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result));
#endif
  TE_CHECK(result == cudaDriverEntryPointSuccess, "the CUDA driver has no function {}", name);
  return reinterpret_cast<Function>(found);
}

inline void driver_check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    internal_error(fmt::format("{}: CUDA driver error {}", call, static_cast<int>(result)),
                   std::source_location::current());
}

}  // namespace te::parallel
