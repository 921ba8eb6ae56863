// FP8 health of a whole job: each rank knows the operands of its stage, and of these its own share.
#pragma once

#include <vector>

#include "parallel/world.h"
#include "train/metrics.h"

namespace te::train {

/// The operands of all stages in the order of the ranks; per operand the largest amax and the shares of all values that
/// its ranks have counted. Collective; every rank gets the result.
std::vector<Fp8Health> merge_fp8_health(parallel::World& world, const std::vector<Fp8Health>& own);

}  // namespace te::train
