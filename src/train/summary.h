// The tables of the start: device, model, memory, effective config. Those that say what a config means take all of it:
// what is worth a line may be a key of any section.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"

namespace te::train {

/// What the driver, cuBLASLt and cuDNN hold beside the plan: 605 to 612 MiB in runs of GPT-2 124M on an H200 (CUDA
/// 13.0, cuDNN 9.19), by nvidia-smi.
inline constexpr int64_t kCudaOverheadBytes = int64_t{620} << 20;

/// "1,234,567".
std::string with_separators(int64_t value);

/// Which kernels compute attention on a GPU; with a note where these are the slow ones. Empty on the CPU.
std::string attention_summary(const config::Config& config, kernels::AttentionKernels attention);

std::string device_summary(const Context& context);
/// Of the whole model: shape, parameters by part, FLOPs per token, tokens per step.
std::string model_summary(const config::Config& config);
/// Parameters of the whole model, which ranks share.
int64_t total_parameters(const config::Config& config);
/// How many of the model's parameters this rank holds: a line; empty where it holds all.
std::string shard_summary(const config::Config& config, const parameters::ParameterStore& parameters);
/// Which operands are FP8, in which format, by which recipe; and a warning where FP8 is likely slower than
/// BF16.
std::string precision_summary(const config::Config& config, const Context& context);
/// What the data ranks gather once a step, and whether FP8 weights travel in FP8: a line; empty where nothing is
/// gathered then.
std::string gather_summary(const parameters::ParameterStore& parameters);
/// What is allowed but seldom meant, a line each; empty mostly.
std::string config_notes(const config::Config& config);
/// What a link to the host is taken to carry each way, in bytes per second: 16 lanes of PCIe 5.0, which have 63 GB/s by
/// the specification, less what packets and two directions at once cost. Not measured.
inline constexpr double kAssumedHostLink = 50e9;

/// What optimizer.offload moves, and what it costs at kAssumedHostLink: a line; empty without.
std::string offload_summary(const MemoryPlan& plan, const config::Config& config);
/// Memory by kind, the estimated peak, and what the device has.
std::string memory_summary(const MemoryPlan& plan, const Context& context);

}  // namespace te::train
