// run.json: what a run was, so that its folder explains itself. The effective config key by key, and for every start
// its time, program, command line, hosts with their ranks, device, libraries and the environment that matters.
#pragma once

#include <string>

#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/placement.h"

namespace te::train {

/// Which program wrote a record: version of the project, commit of the build ("-dirty" with changes, "unknown" without
/// git).
struct ProgramVersion {
  std::string version, commit;
};

/// Writes logging.directory/run.json, in which the whole config is. A run with checkpoint.resume other than `never`
/// adds its start to those of the file that is there. UserError when the folder cannot be written.
void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan,
                      const ProgramVersion& program);

}  // namespace te::train
