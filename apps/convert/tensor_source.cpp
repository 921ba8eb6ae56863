#include "convert/tensor_source.h"

#include <fmt/ranges.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/printable.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

std::string file_dtype(DType dtype) {
  return dtype == DType::bf16 ? "BF16" : dtype == DType::f32 ? "F32" : std::string(dtype_name(dtype));
}

class CheckpointTensors final : public TensorSource {
 public:
  explicit CheckpointTensors(const fs::path& path) : reader_(path), fp8_(reader_.fp8()) {
    std::vector<std::pair<TensorEntry, StoredTensor>> found;
    for (size_t i = 0; i < reader_.tensors().size(); ++i) {
      const checkpoint::LogicalTensor& tensor = reader_.tensors()[i];
      found.push_back({{tensor.name, file_dtype(tensor.dtype), tensor.shape, tensor.bytes()}, {.tensor = i}});
    }
    for (size_t i = 0; i < fp8_.rows.size(); ++i) {
      const checkpoint::Fp8Operand& operand = fp8_.rows[i].operand;
      const int64_t count = 1 + fp8_.history_len;
      found.push_back(
          {{"fp8/" + operand.name + "/" + operand.role, "F32", {count}, static_cast<uint64_t>(count) * 4},
           {.fp8 = true, .tensor = i}});
    }
    std::ranges::sort(found, [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [entry, place] : found) {
      entries_.push_back(std::move(entry));
      places_.push_back(place);
    }
  }
  void read(size_t index, int64_t first, int64_t count, std::byte* out) const override {
    const StoredTensor& place = places_.at(index);
    if (place.fp8) {
      std::vector<float> values = {fp8_.rows[place.tensor].scale};
      const std::vector<float>& history = fp8_.rows[place.tensor].history;
      values.insert(values.end(), history.begin(), history.end());
      std::memcpy(out, values.data() + first, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    const checkpoint::LogicalTensor& tensor = reader_.tensors()[place.tensor];
    reader_.read(tensor, {0, tensor.cols(), first, count}, out);
  }

 private:
  struct StoredTensor {
    bool fp8 = false;
    size_t tensor = 0;  ///< index in the manifest, or of the FP8 row
  };
  checkpoint::Reader reader_;
  checkpoint::Fp8State fp8_;
  std::vector<StoredTensor> places_;
};

/// Files are read, not memory-mapped, so that resident memory stays small.
class SafetensorsTensors final : public TensorSource {
 public:
  explicit SafetensorsTensors(const std::vector<fs::path>& files) {
    std::vector<std::pair<TensorEntry, FileOffset>> found;
    for (size_t file = 0; file < files.size(); ++file) {
      const SafetensorsReader reader(files[file]);
      for (const SafetensorsTensor& tensor : reader.tensors())
        found.push_back({{tensor.name, std::string(tensor.file_dtype), tensor.shape, tensor.bytes},
                         {file, tensor.offset}});
      te::File opened(files[file]);
      if (!opened.is_open()) user_error("{}: cannot be opened: {}", files[file].string(), opened.error());
      files_.push_back({files[file], opened.release()});
    }
    std::ranges::sort(found, [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [entry, place] : found) {
      if (!entries_.empty() && entries_.back().name == entry.name) {
        user_error("{}: tensor \"{}\" is in another file of the folder, too; remove one of them",
                   files[place.file].string(), printable(entry.name));
      }
      entries_.push_back(std::move(entry));
      places_.push_back(place);
    }
  }
  ~SafetensorsTensors() override {
    for (const File& file : files_) ::close(file.descriptor);
  }
  SafetensorsTensors(const SafetensorsTensors&) = delete;
  SafetensorsTensors& operator=(const SafetensorsTensors&) = delete;

  void read(size_t index, int64_t first, int64_t count, std::byte* out) const override {
    const FileOffset& place = places_.at(index);
    const File& file = files_[place.file];
    const uint64_t size = entries_[index].bytes / static_cast<uint64_t>(entries_[index].numel());
    uint64_t offset = place.offset + static_cast<uint64_t>(first) * size,
             left = static_cast<uint64_t>(count) * size;
    while (left > 0) {
      const ssize_t got = ::pread(file.descriptor, out, left, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0)
        user_error("{}: cannot be read: {}; download it again", file.path.string(),
                   got < 0 ? std::strerror(errno) : "truncated");
      out += got;
      offset += static_cast<uint64_t>(got);
      left -= static_cast<uint64_t>(got);
    }
  }

 private:
  struct FileOffset {
    size_t file = 0;
    uint64_t offset = 0;
  };
  struct File {
    fs::path path;
    int descriptor = -1;
  };
  std::vector<FileOffset> places_;
  std::vector<File> files_;
};

/// The files that a model.safetensors.index.json of transformers names.
std::vector<fs::path> indexed_files(const fs::path& index) {
  const FileText file = read_file(index);
  if (!file) user_error("{}: cannot be read: {}", index.string(), file.error);
  const nlohmann::json root = try_parse_json(file.text);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  std::set<std::string> names;
  if (root.is_object() && map != root.end() && map->is_object()) {
    for (const auto& item : map->items()) {
      const std::string name = item.value().is_string() ? item.value().get<std::string>() : "/";
      if (name.find('/') != name.npos)
        user_error("{}: weight_map of \"{}\" must name a file of the folder; download it again",
                   index.string(), printable(item.key()));
      names.insert(name);
    }
  }
  if (names.empty()) user_error("{}: has no weight_map; download it again", index.string());
  std::vector<fs::path> files;
  for (const std::string& name : names) files.push_back(index.parent_path() / name);
  return files;
}

}  // namespace

int64_t TensorEntry::numel() const {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

std::string TensorEntry::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::vector<fs::path> safetensors_files(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::exists(path, error)) return {path};
    user_error("{}: not found; give a checkpoint, a safetensors file or a folder of such files",
               path.string());
  }
  if (const fs::path index = path / "model.safetensors.index.json"; fs::exists(index, error))
    return indexed_files(index);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::ranges::sort(files);
  if (files.empty())
    user_error("{}: contains neither a checkpoint (manifest.json) nor safetensors files", path.string());
  return files;
}

std::unique_ptr<TensorSource> open_tensors(const fs::path& path) {
  if (checkpoint::is_checkpoint_path(path)) return std::make_unique<CheckpointTensors>(path);
  return std::make_unique<SafetensorsTensors>(safetensors_files(path));
}

}  // namespace te::convert
