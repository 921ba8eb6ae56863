// What te-train says before the first step: a screen for people, and in full the files start.txt and
// effective_config.yaml.
#pragma once

#include <string>

#include "config/config.h"
#include "config/provenance.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "parallel/placement.h"
#include "parallel/process_grid.h"

namespace te::train {

struct StartInfo {
  const config::Config& config;
  const Context& context;
  const MemoryPlan& plan;
  const parameters::ParameterStore& parameters;  ///< of this rank's stage
  const parallel::ProcessGrid& grid;
  const parallel::Placement& placement;
  const config::Provenance& provenance;                                  ///< of the config
  kernels::AttentionKernels attention = kernels::AttentionKernels::cpu;  ///< of this rank's stage
  std::string program;                                                   ///< "te-train 0.1.0 (commit)"
  std::string config_path;                                               ///< as on the command line
  std::string ranks;  ///< a line per rank with a heading; empty for one rank
};

/// Device, model, precision and memory in a line or two each, and the keys that were set, in lines of at most
/// `columns`.
std::string start_screen(const StartInfo& info, int columns);
/// The same in full, with a line per part of the model, kind of memory and rank. Without the config.
std::string start_tables(const StartInfo& info);

/// Writes start.txt (the tables and every buffer of the plan) and effective_config.yaml (every key, and
/// where its value is from) to logging.directory, which must be there. UserError when they cannot be written.
void write_start_files(const StartInfo& info);

}  // namespace te::train
