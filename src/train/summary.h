// The tables at the start: device, model, memory, effective config. Functions that explain a config take all of it, as
// any section may matter.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"

namespace te::train {

/// Memory that the driver, cuBLASLt and cuDNN hold in addition to the plan: 605 to 612 MiB by nvidia-smi for GPT-2 124M
/// on an H200 (CUDA 13.0, cuDNN 9.19).
inline constexpr int64_t kCudaOverheadBytes = int64_t{620} << 20;

/// "1,234,567".
std::string with_separators(int64_t value);

/// The attention kernels used on a GPU, with a note if they are the slow ones. Empty on the CPU.
std::string attention_summary(const config::Config& config, kernels::AttentionKernels attention);

std::string device_summary(const Context& context);
/// Whole model: shape, parameters by part, FLOPs per token, tokens per step.
std::string model_summary(const config::Config& config);
/// Parameters of the whole model, over all ranks.
int64_t total_parameters(const config::Config& config);
/// One line with the number of parameters on this rank; empty if it holds all of them.
std::string shard_summary(const config::Config& config, const parameters::ParameterStore& parameters);
/// Operands in FP8 with format and recipe, and a warning if FP8 is likely slower than BF16.
std::string precision_summary(const config::Config& config, const Context& context);
/// One line: what the data-parallel ranks gather once per step, and whether FP8 weights are gathered in FP8. Empty if
/// nothing is gathered.
std::string gather_summary(const parameters::ParameterStore& parameters);
/// One line for each setting that is allowed but rarely intended; usually empty.
std::string config_notes(const config::Config& config);
/// Assumed bandwidth of a host link per direction, in bytes/s: 16 lanes of PCIe 5.0 (63 GB/s by the specification)
/// minus the overhead of packets and of simultaneous transfers in both directions. Not measured.
inline constexpr double kAssumedHostLink = 50e9;

/// One line: what optimizer.offload transfers, and the time at kAssumedHostLink. Empty without offload.
std::string offload_summary(const MemoryPlan& plan, const config::Config& config);
/// Memory by kind, the estimated peak, and the device's memory.
std::string memory_summary(const MemoryPlan& plan, const Context& context);

}  // namespace te::train
