// A check that values which several ranks hold are still the same bits everywhere. Costs a copy to the host,
// so it is for tests and debug builds.
#pragma once

#include "core/device.h"
#include "parallel/groups.h"
#include "parameters/parameter_store.h"

namespace te::comm {

/// Collective over the world; after the gather's wait. Compares (by a hash) the values of replicated and
/// partial parameters over the tensor group, those of tied parameters over the embedding group, and all of
/// them over the data group, but for sharded ones. InternalError that names the parameter and the group, on every
/// rank of a group that disagrees.
void check_replicas(const Context& context, const parameters::ParameterStore& parameters,
                    const parallel::Groups& groups);

}  // namespace te::comm
