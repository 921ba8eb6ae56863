#include "checkpoint/writer.h"

#include <map>
#include <optional>

#include "checkpoint/folder.h"
#include "checkpoint/rank_files.h"
#include "core/error.h"

namespace te::checkpoint {

struct Writer::State {
  std::filesystem::path directory, temporary;
  Progress progress;
  std::string config;
  Fp8State fp8;
  std::optional<RankFiles> files;
  std::map<std::string, size_t, std::less<>> shard_of;  ///< tensor -> shard of files
  bool finished = false;
};

Writer::Writer(const std::filesystem::path& directory, const Progress& progress, const std::string& config,
               const std::vector<TensorSpec>& tensors, const Fp8State& fp8)
    : state_(std::make_unique<State>(
          State{.directory = directory, .progress = progress, .config = config, .fp8 = fp8})) {
  std::vector<StoredShard> shards;
  for (const TensorSpec& spec : tensors) {
    const LogicalTensor tensor{spec.name, spec.dtype, spec.shape, {}};
    TE_CHECK(tensor.numel() > 0, "tensor {} has no elements", spec.name);
    state_->shard_of[spec.name] = shards.size();
    shards.push_back(
        {spec.name, spec.dtype, spec.shape, spec.shape, {Block::rows(0, tensor.rows(), tensor.cols())}});
  }
  guard_file_system([&] { state_->temporary = begin_folder(directory, progress.step); });
  try {
    state_->files.emplace(state_->temporary, RankInfo{}, shards);
  } catch (...) {
    discard_folder(state_->temporary);
    throw;
  }
}

Writer::~Writer() {
  state_->files.reset();
  if (!state_->finished) discard_folder(state_->temporary);
}

void Writer::write(std::string_view name, const void* data, size_t bytes) {
  const auto found = state_->shard_of.find(name);
  TE_CHECK(found != state_->shard_of.end(), "tensor {} was not declared in the constructor", name);
  state_->files->write(found->second, data, bytes);
}

std::filesystem::path Writer::finish() {
  State& state = *state_;
  TE_CHECK(!state.finished, "finish() called twice");
  Manifest manifest = state.files->finish(state.fp8);
  manifest.progress = state.progress;
  manifest.config = state.config;
  std::filesystem::path folder;
  guard_file_system([&] { folder = commit_folder(state.directory, state.progress.step, to_text(manifest)); });
  state.finished = true;
  return folder;
}

}  // namespace te::checkpoint
