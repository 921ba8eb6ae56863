#include "core/gpu_models.h"

#include <algorithm>
#include <array>

namespace te {

std::span<const GpuModel> gpu_models() {
  static constexpr auto models = std::to_array<GpuModel>({
      {"NVIDIA A100-SXM4-40GB", 80, 312e12, 0, 1.555e12},
      {"NVIDIA A100-PCIE-40GB", 80, 312e12, 0, 1.555e12},
      {"NVIDIA A100-SXM4-80GB", 80, 312e12, 0, 2.039e12},
      {"NVIDIA A100 80GB PCIe", 80, 312e12, 0, 1.935e12},
      {"NVIDIA RTX A6000", 86, 154.8e12, 0, 0.768e12},
      {"NVIDIA L4", 89, 121e12, 242e12, 0.300e12},
      {"NVIDIA L40S", 89, 362e12, 733e12, 0.864e12},
      {"NVIDIA GeForce RTX 4090", 89, 165.2e12, 330.3e12, 1.008e12},
      {"NVIDIA H100 80GB HBM3", 90, 989.4e12, 1978.9e12, 3.35e12},
      {"NVIDIA H100 PCIe", 90, 756e12, 1513e12, 2.0e12},
      {"NVIDIA H100 NVL", 90, 835e12, 1671e12, 3.9e12},
      {"NVIDIA H200", 90, 989.4e12, 1978.9e12, 4.8e12},
      {"NVIDIA H200 NVL", 90, 835e12, 1671e12, 4.8e12},
      {"NVIDIA H20", 90, 148e12, 296e12, 4.0e12},
      {"NVIDIA B200", 100, 2250e12, 4500e12, 8.0e12},
      {"NVIDIA GeForce RTX 5090", 120, 209.5e12, 419e12, 1.792e12},
  });
  return models;
}

const GpuModel* gpu_model(std::string_view name) {
  const auto models = gpu_models();
  const auto found = std::ranges::find(models, name, &GpuModel::name);
  return found == models.end() ? nullptr : &*found;
}

}  // namespace te
