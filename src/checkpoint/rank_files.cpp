#include "checkpoint/rank_files.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "checkpoint/folder.h"
#include "checkpoint/write_error.h"
#include "core/error.h"
#include "core/file.h"
#include "core/stored_values.h"

namespace te::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kDisk = "disk: ";  // prefix of a WriteError's message in a failure marker

std::string file_name(const char* kind, RankInfo who) {
  if (who.size == 1) return fmt::format("{}.safetensors", kind);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kind, who.rank + 1, who.size);
}

fs::path part_path(const fs::path& folder, int rank) {
  return folder / fmt::format("part-{:05}.json", rank + 1);
}

fs::path failure_path(const fs::path& folder, int rank) {
  return folder / fmt::format("failed-{:05}.txt", rank + 1);
}

void check_finite(const StoredShard& shard, const void* values, int64_t count) {
  if (!are_finite(shard.dtype, values, count)) {
    user_error(
        "{} is not finite after this step, so no checkpoint is saved; lower optimizer.lr, and resume from "
        "an earlier checkpoint",
        shard.name);
  }
}

}  // namespace

RankFiles::RankFiles(const fs::path& folder, RankInfo who, const std::vector<StoredShard>& shards)
    : folder_(folder), who_(who), places_(shards.size()) {
  for (const bool moments : {false, true}) {
    std::vector<SafetensorsSpec> specs;
    for (size_t i = 0; i < shards.size(); ++i) {
      const StoredShard& shard = shards[i];
      LogicalTensor tensor{shard.name, shard.dtype, shard.global, {}};
      if (tensor.is_moment() != moments) continue;
      int64_t offset = 0;
      for (const Block& block : shard.blocks) {
        tensor.slices.push_back({static_cast<int>(files_.size()), offset, block});
        offset += block.count;
      }
      specs.push_back({shard.name, shard.dtype, shard.stored});
      places_[i] = {files_.size(), shard.name};
      part_.tensors.push_back(std::move(tensor));
    }
    if (!specs.empty()) files_.emplace_back(folder, file_name(moments ? "optimizer" : "model", who), specs);
  }
}

void RankFiles::write(size_t shard, const void* data, size_t bytes) {
  const auto& [file, name] = places_.at(shard);
  files_[file].write(name, data, bytes);
}

Manifest RankFiles::finish(const Fp8State& fp8) {
  for (ShardFile& file : files_) part_.files.push_back(file.finish());
  if (!fp8.rows.empty()) part_.fp8.push_back(write_fp8(folder_, file_name("fp8", who_), fp8, part_.files));
  return std::move(part_);
}

Manifest write_rank_files(const fs::path& folder, RankInfo who, const std::vector<SavedShard>& shards,
                          const Fetch& fetch, const Fp8State& fp8) {
  RankFiles files(folder, who, {shards.begin(), shards.end()});
  for (size_t i = 0; i < shards.size(); ++i) {
    const int64_t total = shards[i].count();
    for (int64_t first = 0; first < total; first += kFetch) {
      const int64_t count = std::min(kFetch, total - first);
      const void* values = fetch(i, first, count);
      check_finite(shards[i], values, count);
      files.write(i, values, static_cast<size_t>(count) * dtype_size(shards[i].dtype));
    }
  }
  return files.finish(fp8);
}

void write_rank_manifest(const fs::path& folder, RankInfo who, const Manifest& part) {
  write_text(part_path(folder, who.rank), to_text(part));
}

void write_failure_marker(const fs::path& folder, RankInfo who, const std::string& message, bool disk) {
  const fs::path path = failure_path(folder, who.rank);
  try {
    write_text(path, (disk ? kDisk : "") + message);
  } catch (const UserError&) {
    const File empty(path, O_WRONLY | O_CREAT | O_TRUNC);  // an empty file can be created on a full disk, too
  }
}

/// Throws the error of another rank.
[[noreturn]] static void rethrow_failure(const fs::path& folder, int rank) {
  std::string message = read_file(failure_path(folder, rank)).text;
  if (message.empty())
    write_error("rank {}: its files could not be written; check the disk's free space", rank);
  if (!message.starts_with(kDisk)) user_error("rank {}: {}", rank, message);
  write_error("rank {}: {}", rank, message.substr(kDisk.size()));
}

void wait_for_ranks(const fs::path& folder, int ranks) {
  constexpr int kTicks = 1000;  // of 10 ms: a killed rank must not delay the end of the job longer
  std::error_code ignored;
  for (int tick = 0, rank = 1; tick < kTicks && rank < ranks; ++tick) {
    while (rank < ranks &&
           (fs::exists(part_path(folder, rank), ignored) || fs::exists(failure_path(folder, rank), ignored)))
      ++rank;
    if (rank < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::vector<Manifest> collect_parts(const fs::path& folder, int ranks, int64_t timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::vector<Manifest> parts(static_cast<size_t>(ranks - 1));
  for (int rank = 1; rank < ranks; ++rank) {
    const fs::path path = part_path(folder, rank);
    while (!fs::exists(path)) {
      for (int other = 1; other < ranks; ++other) {
        if (fs::exists(failure_path(folder, other))) rethrow_failure(folder, other);
      }
      if (timeout_seconds > 0 && Clock::now() - start > std::chrono::seconds(timeout_seconds)) {
        user_error(
            "{}: rank {} has not finished its files within {} s (parallel.timeout_seconds); check that all "
            "hosts share this folder",
            folder.string(), rank, timeout_seconds);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const FileText text = read_file(path, kAnySize);
    if (!text)
      user_error("{}: cannot be read: {}; check that all hosts share this folder", path.string(), text.error);
    parts[rank - 1] = parse_manifest_part(path.string(), text.text);
  }
  for (int rank = 1; rank < ranks; ++rank) fs::remove(part_path(folder, rank));
  return parts;
}

}  // namespace te::checkpoint
