// Progress in manifest.json. Private to src/checkpoint.
#pragma once

#include <string>

#include "checkpoint/manifest_json.h"
#include "checkpoint/progress.h"

namespace te::checkpoint {

/// Lines `"key": value,` for policies whose state differs from a new run's.
std::string policies_text(const Progress& progress);

/// Progress in a manifest. Missing state gets the values of a new run (checkpoints of earlier versions lack some).
Progress progress_of(const JsonNode& root);

}  // namespace te::checkpoint
