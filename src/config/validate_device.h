// Rules of a particular GPU.
#pragma once

#include "config/config.h"
#include "core/device_caps.h"

namespace te::config {

/// Checks the rules of a device: the general ones of GPUs (config.h), and that this one has the FP8 GEMMs of the
/// config's recipes. UserError with what to use instead.
void validate_for_device(const Config& config, const DeviceCaps& caps);

/// Checks the rules of a device and returns the config with what it can multiply (PrecisionConfig::mx_gemms). For
/// training; generation emulates MXFP8 and NVFP4 on every device, since its few rows suit no such GEMM.
Config for_device(Config config, const DeviceCaps& caps);

}  // namespace te::config
