// Time of one GEMM or attention pass alone on this device. Together with the copy bandwidth of session.h it gives the
// speed-of-light times.
#pragma once

#include <any>

#include "core/device.h"

namespace te::bench {

/// Whether an op's arguments (core/profile.h) are those of a GEMM (with or without an activation) or of an attention
/// pass, whose time cannot be derived from FLOPs and bytes and is measured.
bool is_problem(const std::any& args);

/// Milliseconds of one call of a problem in separate memory with random values. Only shapes, dtypes and flags of
/// `problem` are read; its pointers may be null. Calls rotate over operands that together exceed the L2 cache and run
/// back to back for at least `seconds`; the result is the median of several batches. The algorithm is the one that
/// training uses.
double isolated_ms(const Context& context, const std::any& problem, double seconds);

/// Shape, dtypes and flags as text: equal for problems of equal speed.
std::string problem_key(const std::any& problem);

}  // namespace te::bench
