// Validation: the mean loss over a validation set, computed by all ranks. Neither weights nor the state of the training
// data change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/world.h"
#include "train/batches.h"
#include "train/metrics.h"
#include "train/step_runner.h"

namespace te::train {

/// The mean loss over the counted tokens of each validation set in the config's order, the same on every rank.
/// Data-parallel ranks evaluate different microbatches; context-parallel ranks share each one. Collective, between two
/// steps; waits for the device. Returns an empty vector on all ranks after a read error on one of them, whose
/// `bad_data` has the message.
std::vector<SetLoss> validation_losses(StepRunner& runner, const Batches& batches, int64_t micro_batch_size,
                                       parallel::World& world, std::string& bad_data);

}  // namespace te::train
