// Writes a checkpoint anew, in the files that the ranks of another layout would have saved: each then reads its own
// file and nothing else. Any layout can read any checkpoint, so this is about speed, and about checkpoints of one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "parallel/process_grid.h"

namespace te::checkpoint {

struct ReshardOptions {
  bool optimizer = true;  ///< moments are taken along, where there are any
  /// Called with the bytes written so far, after every few MiB; may throw, which leaves nothing behind.
  std::function<void(int64_t bytes)> progress;
};

/// Writes DIRECTORY/step_<8 digits>, of the same step, and makes it DIRECTORY/latest; returns it. `config` is the
/// checkpoint's own but for its parallel section, which goes with `grid`. Values keep their bits and dtypes. Rows that
/// pad the vocabulary change in number as loading changes them. Memory: some 40 MiB, and a few hundred bytes per tensor
/// and rank.
///
/// UserError, one line, and nothing left: the source is damaged, holds tensors or FP8 state that its config's model has
/// not, or the folder cannot be written.
std::filesystem::path reshard(const Reader& source, const config::Config& config,
                              const parallel::ProcessGrid& grid, const std::filesystem::path& directory,
                              const ReshardOptions& options = {});

}  // namespace te::checkpoint
