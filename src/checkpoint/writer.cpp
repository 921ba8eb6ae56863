#include "checkpoint/writer.h"

#include <map>
#include <optional>

#include "checkpoint/folder.h"
#include "checkpoint/shard_file.h"
#include "core/error.h"

namespace te::checkpoint {

struct Writer::State {
  std::filesystem::path directory, temporary;
  Manifest manifest;
  std::vector<ShardFile> files;
  std::map<std::string, int, std::less<>> file_of;  ///< tensor -> index in files
  bool finished = false;
};

Writer::Writer(const std::filesystem::path& directory, const Progress& progress, const std::string& config,
               const std::vector<TensorSpec>& tensors, const Fp8State& fp8)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.directory = directory;
  state.manifest.progress = progress;
  state.manifest.config = config;
  guard_file_system([&] { state.temporary = begin_folder(directory, progress.step); });
  try {
    for (const bool moments : {false, true}) {
      const int file = static_cast<int>(state.files.size());
      std::vector<SafetensorsSpec> specs;
      for (const TensorSpec& spec : tensors) {
        LogicalTensor tensor{spec.name, spec.dtype, spec.shape, {}};
        if (tensor.is_moment() != moments) continue;
        TE_CHECK(tensor.numel() > 0, "tensor {} has no elements", spec.name);
        tensor.slices = {{file, 0, Block::rows(0, tensor.rows(), tensor.cols())}};
        state.manifest.tensors.push_back(std::move(tensor));
        state.file_of[spec.name] = file;
        specs.push_back({spec.name, spec.dtype, spec.shape});
      }
      if (!specs.empty())
        state.files.emplace_back(state.temporary, moments ? "optimizer.safetensors" : "model.safetensors",
                                 specs);
    }
    if (!fp8.rows.empty()) {
      state.manifest.fp8 = {write_fp8(state.temporary, "fp8.safetensors", fp8, state.manifest.files)};
      state.manifest.fp8[0].file = static_cast<int>(state.files.size());
    }
  } catch (...) {
    discard_folder(state.temporary);
    throw;
  }
}

Writer::~Writer() {
  state_->files.clear();
  if (!state_->finished) discard_folder(state_->temporary);
}

void Writer::write(std::string_view name, const void* data, size_t bytes) {
  const auto found = state_->file_of.find(name);
  TE_CHECK(found != state_->file_of.end(), "tensor {} was not declared in the constructor", name);
  state_->files[found->second].write(found->first, data, bytes);
}

std::filesystem::path Writer::finish() {
  State& state = *state_;
  TE_CHECK(!state.finished, "finish() called twice");
  std::vector<StoredFile> stored;
  for (ShardFile& file : state.files) stored.push_back(file.finish());
  state.manifest.files.insert(state.manifest.files.begin(), stored.begin(), stored.end());
  std::filesystem::path folder;
  guard_file_system([&] {
    folder = commit_folder(state.directory, state.manifest.progress.step, to_text(state.manifest));
  });
  state.finished = true;
  return folder;
}

}  // namespace te::checkpoint
