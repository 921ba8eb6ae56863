#include "planner/gpu.h"

#include <algorithm>

#include "core/error.h"

namespace te::planner {

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
       .copy = 4.23e12},
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
  return {.ranks = ranks, .per_host = std::clamp(cluster.per_host / stride, 1, ranks)};
}

}  // namespace te::planner
