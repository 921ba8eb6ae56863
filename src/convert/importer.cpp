#include "convert/importer.h"

#include <algorithm>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/writer.h"
#include "convert/hugging_face_config.h"
#include "convert/write_behind.h"
#include "core/error.h"

namespace te::convert {
namespace {

int64_t row_bytes(const ForeignModel& model, const ParameterLayout& parameter) {
  return parameter.cols() * static_cast<int64_t>(dtype_size(model.dtype(parameter)));
}

}  // namespace

int64_t total_bytes(const ForeignModel& model) {
  int64_t bytes = 0;
  for (const ParameterLayout& parameter : model.parameters())
    bytes += parameter.rows() * row_bytes(model, parameter);
  return bytes;
}

Converted write_checkpoint(const ForeignModel& model, const std::filesystem::path& directory,
                           const OnProgress& progress) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const ParameterLayout& parameter : model.parameters())
    specs.push_back({parameter.name, model.dtype(parameter), parameter.shape});
  checkpoint::Writer writer(directory, {}, config::to_yaml(complete_config(model.model())), specs);
  Converted done{.tensors = static_cast<int64_t>(specs.size()), .files = 1, .bytes = 0};
  WriteBehind chunks(
      [&](const std::string& name, const std::byte* data, size_t bytes) { writer.write(name, data, bytes); });
  for (const ParameterLayout& parameter : model.parameters()) {
    const int64_t width = row_bytes(model, parameter);
    const int64_t max_rows = std::max<int64_t>(1, kChunkBytes / width);
    for (int64_t first = 0; first < parameter.rows(); first += max_rows) {
      const int64_t count = std::min(max_rows, parameter.rows() - first);
      const auto bytes = static_cast<size_t>(count * width);
      model.read_rows(parameter, first, count, chunks.buffer(bytes));
      chunks.put(parameter.name, bytes);
      done.bytes += count * width;
      if (progress) progress(done.bytes);
    }
  }
  chunks.finish();
  writer.finish();
  return done;
}

void write_config_fragment(const ForeignModel& model, const std::filesystem::path& directory) {
  // The model section is the line "model:" and the indented lines after it.
  const std::string all = config::to_yaml(complete_config(model.model()));
  const size_t begin = all.find("model:\n");
  TE_CHECK(begin != std::string::npos, "to_yaml has no model section");
  size_t end = all.find('\n', begin) + 1;
  while (end < all.size() && all[end] == ' ') end = all.find('\n', end) + 1;
  checkpoint::write_text(
      directory / "model.yaml",
      fmt::format(
          "# The model of {}, for a config of te-train. seq_length can be any value up to\n"
          "# max_position_embeddings. To start from these weights, set checkpoint.init_from to the folder "
          "of this file.\n{}",
          model.title(), all.substr(begin, end - begin)));
}

}  // namespace te::convert
