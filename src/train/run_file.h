// Small files of a run folder that are written whole, at the start: run.json, start.txt, effective_config.yaml.
#pragma once

#include <filesystem>
#include <string>

namespace te::train {

/// Writes the file aside and renames it, so that it is never half there. A disk that takes no more is warned of, and
/// the run goes on without the file, or with the one of an earlier start. UserError when the file cannot be replaced.
void write_run_file(const std::filesystem::path& path, const std::string& text);

}  // namespace te::train
