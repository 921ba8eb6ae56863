// Lists the files that --input names: files, folders, standard input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace te::text {

struct InputFiles {
  std::vector<std::string> paths;  ///< in the order of the inputs; "-" is standard input
  int64_t skipped = 0;             ///< binary files in folders
  int64_t skipped_links = 0;       ///< symbolic links in folders that lead to a folder or to nothing
  int64_t bytes = 0;               ///< size of all files as stored; -1 if standard input is among them
};

/// Replaces each folder by all files below it, sorted by path, without hidden and binary files (those with a NUL byte
/// in the first 64 KiB after decompression). Links to files are read, links to folders are not followed. UserError if
/// an input is missing, a folder has no text file or cannot be listed, and for tables (Parquet, Arrow), also inside
/// folders.
InputFiles list_input_files(const std::vector<std::string>& inputs);

}  // namespace te::text
