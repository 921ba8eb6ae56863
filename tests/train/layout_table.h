// The layouts and settings that layout_mpi_test.cpp compares with one rank: a covering set, not the cross product.
// Every layout meets both model families, every recipe and every way to recompute; every pair of a schedule or a tensor
// layout with a precision, and of a schedule with data parallelism, occurs at least once.
#pragma once

#include <vector>

#include "layout_cases.h"

namespace te::testing {

/// The cases of a job of so many ranks.
std::vector<Case> cases_of(int ranks);

/// And those with sequence parallelism once more by parallel.tensor_transport copy, in one piece, in pieces of one
/// rank's tokens and of half as many; and by parallel.data_transport and pipeline_transport copy.
std::vector<Case> with_copies(std::vector<Case> cases);

}  // namespace te::testing
