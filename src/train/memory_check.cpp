#include "train/memory_check.h"

#include <omp.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/address_space.h"
#include "core/host_memory.h"
#include "kernels/gemm/sgemm_cpu.h"

namespace te::train {
namespace {

constexpr const char* kLimit = "the limit of this process (ulimit -v, ulimit -d)";
constexpr const char* kHigher = "a higher limit; ";

/// Suggestions that are not in use yet, in the order of the bytes that they save at most.
std::string remedies(const MemoryPlan& plan, const config::Config& config, const Context& context,
                     int data_ranks) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  std::vector<std::pair<int64_t, std::string>> all;
  const int64_t passes = plan.bytes(MemoryKind::activations) + plan.bytes(MemoryKind::scratch);
  if (config.training.micro_batch_size > 1)
    all.emplace_back(passes / 2, "a smaller training.micro_batch_size");
  if (config.training.recompute != config::Recompute::full)
    all.emplace_back(plan.bytes(MemoryKind::activations), "training.recompute: full");
  if (optimizer.name == config::OptimizerName::adamw &&
      (optimizer.exp_avg_dtype == config::MomentDType::fp32 ||
       optimizer.exp_avg_sq_dtype == config::MomentDType::fp32))
    all.emplace_back(plan.bytes(MemoryKind::optimizer) / 2,
                     "optimizer.exp_avg_dtype and exp_avg_sq_dtype: bf16 or fp8");
  // Offload does not help on the CPU.
  if (context.is_cuda() && optimizer.name == config::OptimizerName::adamw &&
      optimizer.offload == config::Offload::none)
    all.emplace_back(plan.bytes(MemoryKind::optimizer), "optimizer.offload: moments");
  if (!optimizer.store_param_remainders && config.precision.dtype == config::ComputeDType::bf16)
    all.emplace_back(plan.bytes(MemoryKind::main_params) / 2, "optimizer.store_param_remainders: true");
  if (optimizer.main_grad_dtype == config::GradDType::fp32)
    all.emplace_back(plan.bytes(MemoryKind::main_grads) / 2, "optimizer.main_grad_dtype: bf16");
  if (data_ranks > 1 && config.parallel.shard != config::Shard::parameters) {
    const int64_t grads =
        config.parallel.shard == config::Shard::optimizer ? plan.bytes(MemoryKind::main_grads) : 0;
    const int64_t base = config.adapter.on() ? plan.bytes(MemoryKind::fp8_weights) : 0;
    all.emplace_back((grads + plan.bytes(MemoryKind::parameters) + base) / data_ranks * (data_ranks - 1),
                     "parallel.shard: parameters");
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, remedy] : all)
    if (bytes > plan.total_bytes() / 50) text += remedy + "; ";
  const config::ParallelConfig& parallel = config.parallel;
  const int64_t ranks = data_ranks * parallel.tensor * parallel.context * parallel.pipeline;
  if (const int64_t intended = parallel.intended_ranks(); ranks < intended)
    return text + fmt::format("the {} ranks that the config is for (mpirun -n {})", intended, intended);
  return text + "more ranks (parallel.tensor, parallel.context, parallel.expert, parallel.pipeline)";
}

/// Suggestions for host memory.
std::string host_remedies(const MemoryPlan& plan, const config::Config& config, int64_t guard_bytes) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  std::string text;
  if (guard_bytes > 0) text += "guard.every: 0; ";
  if (plan.host_bytes(MemoryKind::main_params) > 0) text += "optimizer.offload: moments; ";
  if (plan.host_bytes(MemoryKind::optimizer) > 0 && (optimizer.exp_avg_dtype == config::MomentDType::fp32 ||
                                                     optimizer.exp_avg_sq_dtype == config::MomentDType::fp32))
    text += "optimizer.exp_avg_dtype and exp_avg_sq_dtype: bf16 or fp8; ";
  return text + "fewer ranks on this host, or more host memory";
}

}  // namespace

FreeMemory free_memory(const Context& context, int host_ranks) {
  const int64_t host = available_host_bytes() / std::max(1, host_ranks);
  const int64_t own = std::max<int64_t>(
      0, free_address_space() - (context.is_cuda() ? 0 : kernels::openblas_bytes(omp_get_max_threads())));
  const int64_t least = std::min(host, own);
  return {
      .device = context.is_cuda() ? context.info().free_bytes : least, .host = least, .by_limit = own < host};
}

std::string memory_shortage(const MemoryPlan& plan, const config::Config& config, const Context& context,
                            int data_ranks, const FreeMemory& free, int64_t guard_bytes) {
  const int64_t on_host = plan.total_host_bytes() + guard_bytes;
  const int64_t on_device = plan.total_bytes() + (context.is_cuda() ? 0 : on_host);
  if (on_device > free.device) {
    return fmt::format("the memory plan needs {}, but {} has {} free per rank; options: {}{}",
                       human_bytes(on_device),
                       context.is_cuda() ? fmt::format("cuda:{}", context.ordinal())
                                         : std::string(free.by_limit ? kLimit : "this host"),
                       human_bytes(free.device), free.by_limit && !context.is_cuda() ? kHigher : "",
                       remedies(plan, config, context, data_ranks));
  }
  if (on_host <= free.host) return "";
  return fmt::format(
      "the memory plan needs {} of page-locked host memory, but {} has {} free per rank; options: {}{}",
      human_bytes(on_host), free.by_limit ? kLimit : "this host (or the limit of its control group)",
      human_bytes(free.host), free.by_limit ? kHigher : "", host_remedies(plan, config, guard_bytes));
}

}  // namespace te::train
