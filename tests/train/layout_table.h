// The layouts and settings that layout_mpi_test.cpp compares with one rank: a covering set, not the cross product.
// Every layout meets both model families, every recipe and every way to recompute; every pair of a schedule or a tensor
// layout with a precision, and of a schedule with data parallelism, occurs at least once.
#pragma once

#include <string_view>
#include <vector>

#include "layout_cases.h"

namespace te::testing {

/// A case whose name says most of it: "tp2_pp2_sp_llama_delayed_zero_bubble" is a Llama under the recipe delayed, on
/// two tensor ranks with sequence parallelism times two stages with that schedule. `rest`: what the name has no word
/// for. Throws std::logic_error for a word that is none.
Case named(std::string_view name, Case rest = {});

/// The cases of a job of so many ranks.
std::vector<Case> cases_of(int ranks);

/// And those with sequence parallelism once more by parallel.tensor_transport copy, in one piece, in pieces of one
/// rank's tokens and of half as many; and by parallel.data_transport and pipeline_transport copy.
std::vector<Case> with_copies(std::vector<Case> cases);

}  // namespace te::testing
