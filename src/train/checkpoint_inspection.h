// Runs forward and backward passes from a checkpoint to measure how FP8 quantization changes the operands. Weights,
// scales and files stay unchanged. One rank holds the whole model, whatever layout saved it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "core/device.h"
#include "train/fp8_statistics.h"

namespace te::train {

struct InspectionOptions {
  std::string data;                    ///< dataset prefix; empty: the run's own training data
  std::vector<std::string> overrides;  ///< KEY=VALUE applied to the checkpoint's config
  std::vector<std::string> recipes;    ///< compared with the run's own recipe
  int64_t microbatches = 1;
};

struct InspectionSetup {
  /// The checkpoint's config with the overrides, for one rank and without what only a training run needs.
  config::Config config;
  config::ComputeDType run_dtype = config::ComputeDType::bf16;  ///< FP16 runs are inspected in BF16
  int64_t microbatches_of_step = 1;  ///< per step of the run; divides the gradients
};
/// UserError when the overrides contradict the config, or there is no dataset.
InspectionSetup inspection_setup(const checkpoint::Reader& reader, const InspectionOptions& options);

struct Inspection {
  Fp8Statistics statistics;  ///< over all microbatches
  int64_t tokens = 0;        ///< number of tokens inspected
  bool calibrated = false;   ///< scales come from calibration, as the checkpoint has none
};

/// `context` has the config's execution_options(). UserError when the data cannot be used, a file is damaged, or memory
/// is insufficient.
Inspection inspect_checkpoint(const Context& context, const checkpoint::Reader& reader,
                              const InspectionSetup& setup, const InspectionOptions& options);

}  // namespace te::train
