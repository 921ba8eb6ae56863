// Validation: the mean loss of the model over a validation set, by all ranks of a job. No weight changes, and neither
// does the state of the training data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "train/batches.h"
#include "train/metrics.h"
#include "train/step_runner.h"

namespace te::train {

/// All ranks, between two steps. The mean over the counted tokens of each validation set, the same on every rank; waits
/// for the device. The data ranks take turns with the microbatches, which context
/// ranks share. All sets, in the config's order; none, on all ranks, when
/// one of them cannot use what it has read: `bad_data` tells there why.
std::vector<SetLoss> validation_losses(StepRunner& runner, const Batches& batches, int64_t micro_batch_size,
                                       parallel::World& world, std::string& bad_data);

}  // namespace te::train
