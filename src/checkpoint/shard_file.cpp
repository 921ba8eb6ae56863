#include "checkpoint/shard_file.h"

#define XXH_STATIC_LINKING_ONLY  // makes XXH3_state_t a complete type
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace te::checkpoint {

/// Computes the checksums of a tensor's blocks from data of any lengths.
struct ShardFile::Sums {
  Sums() { XXH3_64bits_reset(&state); }
  void add(const char* data, size_t bytes) {
    while (bytes > 0) {
      const size_t part = std::min(bytes, static_cast<size_t>(kChecksumBlock) - in_block);
      XXH3_64bits_update(&state, data, part);
      data += part;
      bytes -= part;
      in_block += part;
      if (in_block == static_cast<size_t>(kChecksumBlock)) end_block();
    }
  }
  void end_block() {
    if (in_block == 0) return;
    blocks.push_back(XXH3_64bits_digest(&state));
    XXH3_64bits_reset(&state);
    in_block = 0;
  }
  XXH3_state_t state;
  size_t in_block = 0;
  std::vector<uint64_t> blocks;
};

ShardFile::ShardFile(const std::filesystem::path& folder, const std::string& name,
                     const std::vector<SafetensorsSpec>& tensors)
    : name_(name), writer_(std::make_unique<SafetensorsWriter>(folder / name, tensors)) {
  for (const SafetensorsSpec& tensor : tensors) sums_[tensor.name] = std::make_unique<Sums>();
}

ShardFile::~ShardFile() = default;
ShardFile::ShardFile(ShardFile&&) noexcept = default;

void ShardFile::write(const std::string& name, const void* data, size_t bytes) {
  writer_->write(name, data, bytes);
  sums_.at(name)->add(static_cast<const char*>(data), bytes);
}

StoredFile ShardFile::finish() {
  writer_->finish();
  StoredFile stored{.name = name_, .checksums = {}};
  for (auto& [name, sums] : sums_) {
    sums->end_block();
    stored.checksums[name] = std::move(sums->blocks);
  }
  return stored;
}

Fp8Part write_fp8(const std::filesystem::path& folder, const std::string& name, const Fp8State& state,
                  std::vector<StoredFile>& files) {
  const auto n = static_cast<int64_t>(state.rows.size());
  Fp8Part part{.file = static_cast<int>(files.size()), .operands = {}};
  std::vector<float> scale, history(static_cast<size_t>(state.history_len * n));
  for (int64_t i = 0; i < n; ++i) {
    const Fp8State::Row& row = state.rows[i];
    part.operands.push_back(row.operand);
    scale.push_back(row.scale);
    TE_CHECK(static_cast<int64_t>(row.history.size()) == state.history_len,
             "{}: amax history of length {} instead of {}", row.operand.name, row.history.size(),
             state.history_len);
    for (int64_t at = 0; at < state.history_len; ++at) history[at * n + i] = row.history[at];
  }
  ShardFile file(folder, name,
                 {{"scale", DType::f32, {n, 1}},
                  {"amax_history", DType::f32, {state.history_len, n}},
                  {"position", DType::i32, {1}}});
  file.write("scale", scale.data(), scale.size() * sizeof(float));
  file.write("amax_history", history.data(), history.size() * sizeof(float));
  file.write("position", &state.position, sizeof(state.position));
  files.push_back(file.finish());
  return part;
}

}  // namespace te::checkpoint
