// What this device does at its best: the rate of a GEMM or an attention pass by itself. With the copy
// bandwidth of session.h these are the denominators of every floor.
#pragma once

#include <any>

#include "core/device.h"

namespace te::bench {

/// Whether an op's arguments (core/profile.h) are a problem whose speed does not follow from FLOPs and bytes alone: a
/// GEMM, with or without an activation, or a pass of attention.
bool is_problem(const std::any& args);

/// Milliseconds of one call of a problem (only shapes, dtypes and flags are read, its pointers may be null) on memory
/// of its own, filled with random values. Calls rotate among operands that together do not fit the L2 cache, run back
/// to back for at least `seconds`, and the median of several batches counts. The algorithm is the one that training
/// takes.
double isolated_ms(const Context& context, const std::any& problem, double seconds);

/// Shape, dtypes and flags as text: equal for problems of equal speed.
std::string problem_key(const std::any& problem);

}  // namespace te::bench
