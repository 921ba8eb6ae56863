// run.json: the record of a run. It has the effective config key by key, and for every start the time, program, command
// line, hosts with their ranks, device, libraries, relevant environment variables, what it loaded, and how it ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

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

/// What a run has loaded.
struct RunInputs {
  /// Of datasets and initial weights, by path; reports compare runs only if the same path had the same content.
  std::map<std::string, std::string> contents;
  int64_t zero_moments_after =
      0;  ///< the step of a checkpoint that was resumed without Adam moments; 0: none
};

/// Writes logging.directory/run.json with the whole config. With checkpoint.resume other than `never`, adds this start
/// to those already in the file. UserError when the folder cannot be written.
void write_run_record(const config::Config& config, const Context& context,
                      const parallel::Placement& placement, const MemoryPlan& plan, const RunInputs& inputs,
                      const ProgramVersion& program);

/// Adds to the last start in logging.directory/run.json how it ended. A start that is killed or fails has no end.
void record_end(const config::Config& config, std::string_view end);

}  // namespace te::train
