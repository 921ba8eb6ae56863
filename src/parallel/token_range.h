// Consecutive tokens of a whole that are neighbours on the rank that holds them.
#pragma once

#include <cstdint>

namespace te::parallel {

struct TokenRange {
  int64_t local = 0;  ///< the first one's place among the rank's tokens
  int64_t begin = 0;  ///< and in the whole: a sequence (SequenceSplit) or a microbatch (TensorParallel)
  int64_t count = 0;
};

}  // namespace te::parallel
