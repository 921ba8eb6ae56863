// Checks that values which are replicated across ranks are bit-identical. It copies them to the host, so it is only for
// tests and debug builds.
#pragma once

#include "core/device.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

/// Collective over the world; call it after waiting for the gathers. Compares hashes of replicated and partial
/// parameters over the tensor group, of tied parameters over the embedding group, and of all parameters without
/// sharded values over the ranks of their gradient group. InternalError with the parameter and the group on every rank
/// of a group with different values.
void check_replicas(const Context& context, const parameters::ParameterStore& parameters,
                    const parallel::Groups& groups);

}  // namespace te::comm
