#include "planner/gpu.h"

#include <algorithm>

#include "core/error.h"
#include "core/gpu_models.h"

namespace te::planner {
namespace {

constexpr double kH200Copy = 4.23e12;
constexpr double kHopperLink = 450e9;  ///< bytes/s of a GPU's NVLinks in each direction

/// A GPU that was not measured. `link`: bytes/s to GPUs of the same host in each direction.
Gpu assumed(std::string_view name, std::string_view title, std::string_view model, int64_t mebibytes,
            double link) {
  const GpuModel &h200 = *gpu_model("NVIDIA H200"), &own = *gpu_model(model);
  Gpu gpu{.name = name,
          .title = title,
          .memory_bytes = mebibytes << 20,
          .copy = kH200Copy * own.memory / h200.memory,
          .sm = own.sm};
  for (double* rate :
       {&gpu.bf16, &gpu.attention_forward, &gpu.attention_forward_narrow, &gpu.attention_backward,
        &gpu.grouped_bf16.fprop, &gpu.grouped_bf16.dgrad, &gpu.grouped_bf16.wgrad})
    *rate *= own.bf16 / h200.bf16;
  // Without FP8 no layout uses these rates, but a trace divides by them.
  for (double* rate : {&gpu.fp8, &gpu.fp8_rows, &gpu.fp8_blocks})
    *rate = own.fp8 > 0 ? *rate * own.fp8 / h200.fp8 : gpu.bf16;
  for (GroupedRates* rates : {&gpu.grouped_fp8, &gpu.grouped_fp8_blocks})
    for (double* rate : {&rates->fprop, &rates->dgrad, &rates->wgrad})
      *rate = own.fp8 > 0 ? *rate * own.fp8 / h200.fp8 : gpu.bf16;
  gpu.nvlink *= link / kHopperLink;
  return gpu;
}

}  // namespace

const std::vector<Gpu>& gpus() {
  // Memory as nvidia-smi shows it. Copies: measured on the H200 (docs/log/benchmarks.md); for the H100, the same
  // fraction of its 3.35 TB/s (data sheet).
  static const std::vector<Gpu> all{
      {.name = "h100",
       .title = "NVIDIA H100 80GB SXM",
       .memory_bytes = int64_t{81559} << 20,
       .copy = 2.95e12},
      {.name = "h200",
       .title = "NVIDIA H200 141GB SXM",
       .memory_bytes = int64_t{143771} << 20,
       .copy = kH200Copy},
      assumed("a100", "NVIDIA A100 80GB SXM (rates assumed)", "NVIDIA A100-SXM4-80GB", 81920, 300e9),
      assumed("a6000", "NVIDIA RTX A6000 (rates assumed)", "NVIDIA RTX A6000", 49140, 32e9),
      assumed("l4", "NVIDIA L4 (rates assumed)", "NVIDIA L4", 23034, 32e9),
      assumed("l40s", "NVIDIA L40S (rates assumed)", "NVIDIA L40S", 46068, 32e9),
      assumed("rtx4090", "NVIDIA GeForce RTX 4090 (rates assumed)", "NVIDIA GeForce RTX 4090", 24564, 32e9),
      assumed("h20", "NVIDIA H20 (rates assumed)", "NVIDIA H20", 97871, 450e9),
      assumed("b200", "NVIDIA B200 (rates assumed)", "NVIDIA B200", 183359, 900e9),
      assumed("rtx5090", "NVIDIA GeForce RTX 5090 (rates assumed)", "NVIDIA GeForce RTX 5090", 32607, 64e9),
  };
  return all;
}

const Gpu& gpu_named(std::string_view name) {
  std::string names;
  for (const Gpu& gpu : gpus()) {
    if (gpu.name == name) return gpu;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", gpu.name);
  }
  user_error("--gpu {}: unknown GPU; known are {}; choose the most similar one", name, names);
}

GroupPlacement place_of(const Cluster& cluster, int ranks, int stride) {
  // Of groups that do not divide a host's ranks, some lie on two hosts; the others wait for them.
  const int span = ranks * stride;
  const bool crosses =
      cluster.gpus > cluster.per_host && span <= cluster.per_host && cluster.per_host % span != 0;
  return {.ranks = ranks, .per_host = crosses ? 1 : std::clamp(cluster.per_host / stride, 1, ranks)};
}

}  // namespace te::planner
