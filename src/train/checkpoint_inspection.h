// Forward and backward passes from a checkpoint, for what casting to FP8 does to its operands, and for nothing else: no
// weight, scale or file changes. One rank holds the whole model, whatever layout saved it.
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
  std::string data;                    ///< a dataset's prefix; empty: the run's own training data
  std::vector<std::string> overrides;  ///< KEY=VALUE over the checkpoint's config
  std::vector<std::string> recipes;    ///< what is tried besides the run's own recipe
  int64_t microbatches = 1;
};

struct InspectionSetup {
  config::Config
      config;  ///< the checkpoint's with the overrides, for one rank and without what only a run needs
  config::ComputeDType run_dtype = config::ComputeDType::bf16;  ///< `config` has BF16 where this is FP16
  int64_t microbatches_of_step = 1;  ///< of a step of the run: what its gradients are divided by
};
/// UserError when config and overrides do not go together, or there is no dataset.
InspectionSetup inspection_setup(const checkpoint::Reader& reader, const InspectionOptions& options);

struct Inspection {
  Fp8Statistics statistics;  ///< of all microbatches together
  int64_t tokens = 0;        ///< looked at
  bool calibrated = false;   ///< scales were found on the data: the checkpoint has none for this precision
};

/// `context` has the config's execution_options(). UserError when the data cannot be used, a file is damaged, or memory
/// is short.
Inspection inspect_checkpoint(const Context& context, const checkpoint::Reader& reader,
                              const InspectionSetup& setup, const InspectionOptions& options);

}  // namespace te::train
