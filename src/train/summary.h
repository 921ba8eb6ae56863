// The summary at the start: device, model, batch, memory. Each function returns lines "label: text" with indented lines
// of details, which start_screen.h prints. Functions that explain a config take all of it, as any section may matter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/device_caps.h"
#include "core/memory_plan.h"
#include "kernels/gemm/gemm.h"
#include "model/model_stage.h"

namespace te::train {

/// Memory that the driver, cuBLASLt and cuDNN hold in addition to the plan: 605 to 612 MiB by nvidia-smi for GPT-2 124M
/// on an H200 (CUDA 13.0, cuDNN 9.19).
inline constexpr int64_t kCudaOverheadBytes = int64_t{620} << 20;

/// The attention kernels used on a GPU, with a note if they are the slow ones. Empty on the CPU.
std::string attention_summary(const config::Config& config, kernels::AttentionKernels attention,
                              const DeviceCaps& caps);

/// Notes if the balance of a model's experts is forced, and if a GPU has no tensor-core kernels for their GEMMs.
std::string experts_note(const config::ModelConfig& model, const DeviceCaps& caps);

/// GEMMs of one pass and precision that the same kernels compute.
struct GemmUse {
  std::string precision;  ///< "FP8"
  std::string pass;       ///< "fprop", "dgrad" or "wgrad"
  kernels::GemmKernels kernels = kernels::GemmKernels::openblas;
  std::vector<std::string> linears;  ///< "linear_qkv"
};
/// One line per precision: the kernels of each pass, with a note for the slow ones.
std::string gemm_summary(const std::vector<GemmUse>& uses);

std::string device_summary(const Context& context);
/// One line: the whole model's shape, and this rank's parameters if it does not hold all. `tables`: also the whole
/// model's parameters by part.
std::string model_summary(const config::Config& config, const parameters::ParameterStore& parameters,
                          bool tables);
/// One line: batch, FLOPs per token, steps.
std::string batch_summary(const config::Config& config);
/// Parameters of the whole model, over all ranks.
int64_t total_parameters(const config::Config& config);
/// Operands in FP8 with format and recipe, and a warning if FP8 is likely slower than BF16.
std::string precision_summary(const config::Config& config, const Context& context);
/// One line: what the data-parallel ranks gather once per step, and whether FP8 weights are gathered in FP8. Empty if
/// nothing is gathered.
std::string gather_summary(const parameters::ParameterStore& parameters);
/// One line for each setting that is allowed but rarely intended; usually empty.
std::string config_notes(const config::Config& config);
/// Bandwidth of a host link per direction, in bytes/s, with transfers in both: 16 lanes of PCIe 5.0 (63 GB/s by the
/// specification). Fitted to steps with optimizer.offload on H200s (tests/planner/measured_test.cpp).
inline constexpr double kHostLink = 45e9;

/// One line: what optimizer.offload transfers, and the time at kHostLink. Empty without offload.
std::string offload_summary(const MemoryPlan& plan, const config::Config& config);
/// One line: memory by kind, the estimated peak, and the device's memory. `tables`: the kinds as a table.
std::string memory_summary(const MemoryPlan& plan, const Context& context, bool tables);

}  // namespace te::train
