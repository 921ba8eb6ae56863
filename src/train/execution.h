// The options of kernels and groups that follow from a config.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"

namespace te::train {

/// Options of the run's context. Takes the whole config, as keys of several sections matter.
ExecutionOptions execution_options(const config::Config& config);

/// Options of the run's groups.
parallel::ConnectOptions connect_options(const config::Config& config);

}  // namespace te::train
