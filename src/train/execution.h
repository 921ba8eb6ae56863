// What a config's names mean to kernels and schedules: the one place where its enums become theirs.
#pragma once

#include "config/config.h"
#include "core/device.h"
#include "parallel/groups.h"
#include "parallel/schedule/schedule.h"

namespace te::train {

/// Of the context that a run is to be given. Whole: keys of several sections say how a device computes.
ExecutionOptions execution_options(const config::Config& config);

/// Of the groups that a run is to be given.
parallel::ConnectOptions connect_options(const config::Config& config);

parallel::ScheduleKind schedule_kind(config::PipelineSchedule schedule);

}  // namespace te::train
