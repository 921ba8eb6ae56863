// What a resumed run does differently from the run that saved its checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace te::train {

/// The keys of `now` that differ from the checkpoint's config (`before`, YAML), a line each with what the change does
/// to a run that goes on after `step`; empty when none differs. Keys that say where a run writes, when it saves and on
/// what device it runs do not count.
std::string describe_config_changes(const std::string& before, const config::Config& now, int64_t step);

}  // namespace te::train
