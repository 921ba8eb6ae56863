// A temporary folder that a test fills with small text files, for example as the root of an emulated /proc.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "testing/temporary_folder.h"

namespace te::testing {

class FolderOfFiles : public TemporaryFolder {
 public:
  /// Writes `text` to `file`, a path below the folder, and creates parent folders.
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path full = path() / file;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
};

}  // namespace te::testing
