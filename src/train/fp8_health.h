// FP8 health of the whole job: each rank knows its shard of the operands of its stage.
#pragma once

#include <vector>

#include "parallel/world.h"
#include "train/metrics.h"

namespace te::train {

/// Merges the operands of all stages, in rank order: per operand the largest amax, and the fractions over all values
/// that its ranks have counted. Collective; every rank gets the result.
std::vector<Fp8Health> merge_fp8_health(parallel::World& world, const std::vector<Fp8Health>& own);

}  // namespace te::train
