// Checks before the first step that all ranks of a job train the same run. Hosts without a common file system may have
// other versions of a config, a dataset or the executable; the ranks would train together without an error.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"
#include "parallel/world.h"

namespace te::train {

/// JobFailure when a rank's program, --overwrite or config differs from rank 0's; names the first keys. Collective.
void check_same_run(parallel::World& world, const config::Config& config, const std::string& program,
                    bool overwrite);

/// JobFailure when datasets differ from rank 0's. `datasets`: what check_data() found on the first rank of each host,
/// empty on the others. Collective.
void check_same_datasets(parallel::World& world, const std::vector<checkpoint::Dataset>& datasets);

}  // namespace te::train
