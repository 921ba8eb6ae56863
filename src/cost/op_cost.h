// What each op has to move and compute: the numbers behind a floor (core/profile.h). Bytes count each input
// that is read once and each output that is written once, an in/out tensor twice, and leave out scratch and
// what is smaller than a row (gains, scalars). They are those of the op as it is called: fewer ops that do the
// same work have fewer bytes.
#pragma once

#include "core/profile.h"

namespace te::cost {

/// Of a call that an OpObserver has seen. Causal attention: half of the full score and value GEMMs (five GEMMs in
/// the backward pass), documents not considered. InternalError for arguments of an op that is not in op_cost.cpp.
OpCost op_cost(const OpCall& call);

/// Of an op that takes a struct (kernels::Gemm ...), by its arguments.
OpCost op_cost(const std::any& args);

}  // namespace te::cost
