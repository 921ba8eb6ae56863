// FLOPs and bytes of each op, from which speed-of-light times are computed (core/profile.h). Bytes count each input
// that is read once and each output that is written once, an in/out tensor twice; scratch and tensors smaller than a
// row (norm weights, scalars) are left out. They are those of the op as called: fused ops have fewer bytes.
#pragma once

#include "core/profile.h"

namespace te::cost {

/// The cost of a call that an OpObserver has seen. Causal attention: half of the full score and value GEMMs (five GEMMs
/// in the backward pass), documents not considered. InternalError for arguments of an op that is not in op_cost.cpp.
OpCost op_cost(const OpCall& call);

/// The cost of an op by its argument struct (kernels::Gemm ...).
OpCost op_cost(const std::any& args);

}  // namespace te::cost
