// run.json: the record of a run. It has the effective config key by key, and for every start the time, program, command
// line, hosts with their ranks, device, libraries, relevant environment variables and the content of datasets and
// initial weights.
#pragma once

#include <map>
#include <string>

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
/// to those already in the file. `contents`: of datasets and initial weights, by path; reports compare runs only if the
/// same path had the same content. UserError when the folder cannot be written.
void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan,
                      const std::map<std::string, std::string>& contents, const ProgramVersion& program);

}  // namespace te::train
