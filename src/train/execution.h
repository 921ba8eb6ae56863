// Maps the config's enums to the options of kernels and schedules.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parallel/schedule/schedule.h"

namespace te::train {

/// Options of the run's context. Takes the whole config, as keys of several sections matter.
ExecutionOptions execution_options(const config::Config& config);

/// Options of the run's groups.
parallel::ConnectOptions connect_options(const config::Config& config);

parallel::ScheduleKind schedule_kind(config::PipelineSchedule schedule);

}  // namespace te::train
