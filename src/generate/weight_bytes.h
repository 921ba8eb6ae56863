// The weights that a decoding pass reads, whose bytes over the memory bandwidth are the pass's lower bound.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "model/stack.h"

namespace te::generate {

/// Bytes of the weights of this rank's stack that a pass with `rows` rows reads. With experts an upper bound, since
/// rows may select the same ones.
int64_t weight_bytes(const config::Config& config, const model::Stack& stack, int64_t rows);

}  // namespace te::generate
