// Writes one rank's part of a checkpoint to the temporary folder. There is no communication and no device here: a
// function provides the data, from the device's memory or from an earlier copy.
#pragma once

#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/shard_file.h"
#include "checkpoint/training_state.h"

namespace te::checkpoint {

/// A rank and the number of ranks of the job.
struct RankInfo {
  int rank = 0, size = 1;
};

/// Writes the model and optimizer file of a rank ("model.safetensors"; with several ranks
/// "model-00003-of-00008.safetensors"). Empty files are omitted.
class RankFiles {
 public:
  /// UserError if the files cannot be created.
  RankFiles(const std::filesystem::path& folder, RankInfo who, const std::vector<StoredShard>& shards);
  RankFiles(RankFiles&&) noexcept = default;

  /// Writes the next bytes of a shard.
  void write(size_t shard, const void* data, size_t bytes);
  /// Syncs the files and writes the FP8 file if `fp8` has rows. Returns the rank's manifest.
  Manifest finish(const Fp8State& fp8);

 private:
  std::filesystem::path folder_;
  RankInfo who_;
  Manifest part_;
  std::vector<ShardFile> files_;
  std::vector<std::pair<size_t, std::string>> places_;  ///< per shard: index in files_, name in the file
};

/// Returns elements [first, first + count) of shards[index] in the shard's dtype, in host memory that is valid until
/// the next call. `count` is at most kFetch.
using Fetch = std::function<const void*(size_t index, int64_t first, int64_t count)>;

/// Writes all files of the rank and returns the rank's manifest. UserError if they cannot be written or a value is not
/// finite; the previous checkpoint then stays the latest one.
Manifest write_rank_files(const std::filesystem::path& folder, RankInfo who,
                          const std::vector<SavedShard>& shards, const Fetch& fetch, const Fp8State& fp8);

// Ranks report to rank 0 by files, because the saving thread must not use MPI: each writes a file atomically to the
// temporary folder, with its manifest or its error.
void write_rank_manifest(const std::filesystem::path& folder, RankInfo who, const Manifest& part);
/// `disk`: the error is a WriteError, which rank 0 throws as such.
void write_failure_marker(const std::filesystem::path& folder, RankInfo who, const std::string& message,
                          bool disk);
/// On rank 0 after a failure: waits a limited time for the other ranks' manifests or errors, so that no rank writes to
/// the folder while it is removed.
void wait_for_ranks(const std::filesystem::path& folder, int ranks);
/// On rank 0: waits for the manifests of the other ranks and removes their files; timeout_seconds 0 is no limit. Throws
/// the error of a rank that failed (UserError or WriteError), or a UserError with the rank that did not finish in time.
std::vector<Manifest> collect_parts(const std::filesystem::path& folder, int ranks, int64_t timeout_seconds);

}  // namespace te::checkpoint
