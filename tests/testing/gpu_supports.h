// Configs that a GPU can run (config/validate_device.h).
#pragma once

#include "config/validate_device.h"
#include "core/error.h"

namespace te::testing {

/// Whether this machine's GPU has the FP8 GEMMs of a config.
inline bool gpu_supports(const config::Config& config) {
  try {
    config::validate_for_device(config, cuda_caps(0));
  } catch (const UserError&) {
    return false;
  }
  return true;
}

}  // namespace te::testing
