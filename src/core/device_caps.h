// What a GPU can do, as far as te-train's choices between kernels depend on it. Every such choice asks DeviceCaps, so
// that one program runs on GPUs of compute capability 8.0 and newer.
//
// The abilities are those that the GPU, the compiled code and TE_DEVICE_CAPS have in common. Code may be of an older
// architecture than the GPU: the driver then compiles the PTX of the newest generic one (cmake/TeCuda.cmake).
// TE_DEVICE_CAPS=sm80 makes a newer GPU run what an A100 would run, for tests.
#pragma once

#include <string>
#include <string_view>

#include "core/device.h"

namespace te {

/// Whether this build has the kernels for compute capability 9.0 (wgmma, TMA): TE_CUDA_ARCHITECTURES contains 90a.
#ifdef TE_WITH_SM90A
inline constexpr bool kHasHopperKernels = true;
#else
inline constexpr bool kHasHopperKernels = false;
#endif

struct DeviceCaps {
  /// For messages: "NVIDIA A100-SXM4-80GB, sm_80", and why the abilities are fewer than the GPU's.
  std::string gpu;
  int sm = 0;        ///< 10 * major + minor of the compute capability whose abilities these are; 0 on the CPU
  bool fp8 = false;  ///< FP8 GEMMs with one scale per tensor, operands with the summed dimension last
  /// cuBLASLt's FP8 GEMMs with scales per row, vector or block (kernels/gemm/matrix.h).
  bool fp8_scale_groups = false;
  bool mx = false;                ///< cuBLASLt's GEMMs with a scale per 32 or 16 values (MXFP8, NVFP4)
  bool hopper_kernels = false;    ///< te-train's kernels with wgmma and TMA
  bool clusters = false;          ///< thread block clusters and distributed shared memory
  bool dependent_launch = false;  ///< programmatic dependent launch
  int shared_bytes = 0;           ///< maximum shared memory of a block
  bool operator==(const DeviceCaps&) const = default;
};

/// Abilities of a compute capability of at least 8.0.
DeviceCaps caps_of(int sm);

/// The abilities that both have; `sm` is the smaller one.
DeviceCaps common_caps(const DeviceCaps& a, const DeviceCaps& b);

/// Abilities of a value of TE_DEVICE_CAPS ("sm80"). UserError for an unknown one.
DeviceCaps caps_named(std::string_view name);

/// What a GPU of capability `gpu_sm` can do with code that was compiled for `code_sm`, under a mask (a value of
/// TE_DEVICE_CAPS; may be empty). UserError if the GPU is older than 8.0, or if none of the code runs on it (code_sm
/// 0).
DeviceCaps usable_caps(const std::string& name, int gpu_sm, int code_sm, std::string_view mask);

/// Capabilities of a CUDA device; UserError as usable_caps(). Without CUDA none.
DeviceCaps cuda_caps(int ordinal);

/// Capabilities of a context's device, read once, because a process uses one device. False and zero on the CPU.
const DeviceCaps& device_caps(const Context& context);

}  // namespace te
