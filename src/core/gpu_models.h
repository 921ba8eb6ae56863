// Peak rates of GPU models: the denominators of MFU, and the planner's GPUs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace te {

/// Dense rates of tensor cores with FP32 accumulation, from NVIDIA's datasheets.
struct GpuModel {
  std::string_view name;  ///< as the driver reports it (DeviceInfo::name)
  int sm;                 ///< 10 * major + minor of the compute capability
  double bf16;            ///< FLOP/s
  double fp8;             ///< FLOP/s; 0: no FP8
  double memory;          ///< bytes/s of device memory
};

std::span<const GpuModel> gpu_models();

/// The model with this name; null if it is unknown.
const GpuModel* gpu_model(std::string_view name);

}  // namespace te
