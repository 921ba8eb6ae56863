// Small files of a run folder that are written once, at the start: run.json, start.txt, effective_config.yaml.
#pragma once

#include <filesystem>
#include <string>

namespace te::train {

/// Writes a temporary file and renames it, so that the file is never incomplete. A full disk causes a warning, and the
/// run continues without the file or with that of an earlier start. UserError when the file cannot be replaced.
void write_run_file(const std::filesystem::path& path, const std::string& text);

}  // namespace te::train
