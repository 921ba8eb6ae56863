// The layouts and settings that layout_mpi_test.cpp compares with one rank: a covering set, not all combinations. Every
// layout occurs with both model families, every recipe and every recompute setting; every pair of a schedule or tensor
// layout with a precision, and of a schedule with data parallelism, occurs at least once.
#pragma once

#include <string_view>
#include <vector>

#include "layout_cases.h"

namespace te::testing {

/// Makes a case from its name: "tp2_pp2_sp_llama_delayed_zero_bubble" is a Llama with the recipe delayed on two
/// tensor-parallel ranks with sequence parallelism times two stages with that schedule. `rest`: settings without a
/// word. Throws std::logic_error for an unknown word.
Case named(std::string_view name, Case rest = {});

/// The cases of a job with this many ranks.
std::vector<Case> cases_of(int ranks);

/// Adds the cases with sequence parallelism again with parallel.transport copy, with one chunk, chunks of one
/// rank's tokens, and chunks of half as many.
std::vector<Case> with_copies(std::vector<Case> cases);

}  // namespace te::testing
