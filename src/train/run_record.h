// run.json: the record of a run. It has the effective config key by key, and for every start the time, program, command
// line, hosts with their ranks, device, libraries, relevant environment variables and the content of the datasets.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "parallel/placement.h"

namespace te::train {

/// The program that wrote a record: version of the project, commit of the build ("-dirty" with changes, "unknown"
/// without git).
struct ProgramVersion {
  std::string version, commit;
};

/// Writes logging.directory/run.json with the whole config. With checkpoint.resume other than `never`, adds this start
/// to those already in the file. UserError when the folder cannot be written.
void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan,
                      const std::vector<checkpoint::Dataset>& datasets, const ProgramVersion& program);

}  // namespace te::train
