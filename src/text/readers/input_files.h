// What --input names: files, folders, standard input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace te::text {

struct InputFiles {
  std::vector<std::string> paths;  ///< in the order of the inputs; "-" is standard input
  int64_t skipped = 0;             ///< binary files in folders
  int64_t bytes = 0;               ///< of all files as they lie there; -1 when standard input is among them
};

/// A file stands for itself; a folder for every file below it, sorted by path, without hidden and binary ones
/// (a NUL byte in the first 64 KiB, after decompression). UserError when an input is missing or has no file, and for
/// tables (Parquet, Arrow), in folders too.
InputFiles list_input_files(const std::vector<std::string>& inputs);

}  // namespace te::text
