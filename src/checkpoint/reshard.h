// Rewrites a checkpoint with the files that the ranks of another parallel layout would have saved, so that each rank
// reads only its own file. Any layout can read any checkpoint; resharding makes loading faster, or results in one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/reader.h"
#include "config/config.h"
#include "parallel/process_grid.h"

namespace te::checkpoint {

struct ReshardOptions {
  bool optimizer = true;  ///< copy moments, if there are any
  /// Called with the bytes written so far, after every few MiB. May throw: then no files are left.
  std::function<void(int64_t bytes)> progress;
};

/// Writes DIRECTORY/step_<8 digits> with the same step, updates DIRECTORY/latest and returns the step folder. `config`
/// is the checkpoint's config, except for a `parallel` section that fits `grid`. Values keep their bits and dtypes. The
/// number of rows that pad the vocabulary is adapted as in loading. Memory: some 40 MiB, plus a few hundred bytes per
/// tensor and rank.
///
/// UserError (one line) if the source is damaged, has tensors or FP8 state that its config's model does not have, or if
/// the folder cannot be written; no files are left then.
std::filesystem::path reshard(const Reader& source, const config::Config& config,
                              const parallel::ProcessGrid& grid, const std::filesystem::path& directory,
                              const ReshardOptions& options = {});

}  // namespace te::checkpoint
