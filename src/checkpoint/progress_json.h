// Progress in manifest.json. Private to src/checkpoint.
#pragma once

#include <string>

#include "checkpoint/manifest_json.h"
#include "checkpoint/progress.h"

namespace te::checkpoint {

/// `"key": value,` lines of the policies whose state is not that of a run's beginning.
std::string policies_text(const Progress& progress);

/// The progress in a manifest; state that it lacks is that of a run's beginning, as in checkpoints of earlier versions.
Progress progress_of(const JsonNode& root);

}  // namespace te::checkpoint
