// Differences between a resumed run and the run that saved its checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace te::train {

/// Lists the keys of `now` that differ from the checkpoint's config (`before`, YAML), one per line with the effect of
/// the change on a run that resumes after `step`. Empty when none differs. Keys for output folders, saving and the
/// device are left out.
std::string describe_config_changes(const std::string& before, const config::Config& now, int64_t step);

/// The sources' shares of the samples: their weights divided by the sum.
std::vector<double> shares(const std::vector<config::DataSource>& sources);

/// Whether steps of `now` have other losses than the checkpoint's run would have had, beyond rounding.
bool changes_losses(const std::string& before, const config::Config& now);

}  // namespace te::train
