// Writes one rank's part of a checkpoint into its temporary folder. No communication, no device: data comes from a
// function, so that it may be the device's memory or a copy made earlier.
#pragma once

#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/shard_file.h"
#include "checkpoint/training_state.h"

namespace te::checkpoint {

/// A rank among those that save together.
struct RankInfo {
  int rank = 0, size = 1;
};

/// Model and optimizer file of a rank while they are written ("model.safetensors"; with several ranks
/// "model-00003-of-00008.safetensors"; none that would be empty).
class RankFiles {
 public:
  /// UserError when the files cannot be made.
  RankFiles(const std::filesystem::path& folder, RankInfo who, const std::vector<StoredPiece>& pieces);
  RankFiles(RankFiles&&) noexcept = default;

  /// The next bytes of a piece.
  void write(size_t piece, const void* data, size_t bytes);
  /// Syncs, and writes the FP8 file, if there are rows; returns the rank's part of the manifest.
  Manifest finish(const Fp8State& fp8);

 private:
  std::filesystem::path folder_;
  RankInfo who_;
  Manifest part_;
  std::vector<ShardFile> files_;
  std::vector<std::pair<size_t, std::string>> places_;  ///< of a piece: its file, its name there
};

/// Elements [first, first + count) of pieces[index] in its dtype, on the host; valid until the next call. `count` is at
/// most kFetch.
using Fetch = std::function<const void*(size_t index, int64_t first, int64_t count)>;

/// Writes all files of the rank and returns their part of the manifest. UserError when they cannot be written, or a
/// value is not finite: such weights are no checkpoint, the previous one must stay the latest.
Manifest write_rank_files(const std::filesystem::path& folder, RankInfo who,
                          const std::vector<SavedPiece>& pieces, const Fetch& fetch, const Fp8State& fp8);

// How rank 0 learns that another rank is done, without MPI, which the saving thread must not use: a file that appears
// in the temporary folder at once and whole, with the rank's part of the manifest or with its error.
void write_rank_manifest(const std::filesystem::path& folder, RankInfo who, const Manifest& part);
/// `disk`: a WriteError, which rank 0 passes on as such.
void write_failure_marker(const std::filesystem::path& folder, RankInfo who, const std::string& message,
                          bool disk);
/// Rank 0, after a failure: gives the other ranks a moment to leave part or error, so that nobody writes into the
/// folder that is then removed.
void wait_for_ranks(const std::filesystem::path& folder, int ranks);
/// Rank 0: waits for the parts of ranks 1.. and removes their files; timeout_seconds 0 waits for ever. UserError with
/// the message of a rank that failed (a WriteError where it was one), or with the ranks that were waited for in vain.
std::vector<Manifest> collect_parts(const std::filesystem::path& folder, int ranks, int64_t timeout_seconds);

}  // namespace te::checkpoint
