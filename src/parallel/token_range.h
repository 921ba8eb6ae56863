// Consecutive tokens that are also consecutive in a rank's memory.
#pragma once

#include <cstdint>

namespace te::parallel {

struct TokenRange {
  int64_t local = 0;  ///< index of the first token among the rank's tokens
  int64_t begin = 0;  ///< its index in the full sequence (SequenceSplit) or microbatch (TensorParallel)
  int64_t count = 0;
};

}  // namespace te::parallel
