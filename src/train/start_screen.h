// The output of te-train before the first step: a screen for people, and the complete files start.txt and
// effective_config.yaml.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/provenance.h"
#include "core/device.h"
#include "core/memory_plan.h"
#include "model/model_stage.h"
#include "parallel/placement.h"
#include "parallel/process_grid.h"
#include "train/summary.h"

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
  std::vector<GemmUse> gemms;                                            ///< of one microbatch
  std::string program;                                                   ///< "te-train 0.1.0 (commit)"
  std::string config_path;                                               ///< as on the command line
  std::string ranks;  ///< heading and one line per rank; empty for one rank
};

/// One or two lines each for device, model, precision and memory, and the keys that were set, with at most `columns`
/// columns.
std::string start_screen(const StartInfo& info, int columns);
/// The complete version, with one line per part of the model, kind of memory and rank. Without the config.
std::string start_tables(const StartInfo& info);

/// Writes start.txt (the tables and every buffer of the plan) and effective_config.yaml (every key with its source) to
/// logging.directory, which must exist. UserError when they cannot be written.
void write_start_files(const StartInfo& info);

}  // namespace te::train
