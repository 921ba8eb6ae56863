// The speed-of-light time of a step: a lower bound from the peak rates of the GPU model (core/gpu_models.h), with which
// the logs compare the time that a step takes. For each of R ranks:
//
//   (F_fp8 / fp8 peak + F_other / BF16 peak) * tokens / R + B / memory bandwidth / R
//
//   F    FLOPs per token (flops.h), of quantized GEMMs and of all others
//   B    bytes of the update, which runs when no GEMM does: per trained parameter its gradient is read, and its FP32
//        master weight and moments are read and written once
//
// Left out: communication, the pipeline bubble, recomputation, passes over activations, which fused kernels could
// avoid, and Muon's GEMMs.
#pragma once

#include <optional>

#include "config/config.h"
#include "core/gpu_models.h"

namespace te::train {

/// Seconds.
struct SpeedOfLight {
  double fp8_step = 0, high_precision_step = 0;
};

/// Mean over `ranks` ranks. Empty for a null (unknown) GPU model, and for FP32, whose rates gpu_models.h does not have.
std::optional<SpeedOfLight> speed_of_light(const config::Config& config, const GpuModel* gpu, int ranks);

}  // namespace te::train
