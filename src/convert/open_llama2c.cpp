// Opens the legacy format of llama2.c (https://github.com/karpathy/llama2.c, export.py, version 0): seven int32 (dim,
// hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; vocab_size is negative if the output layer is not
// tied), then FP32 tensors, grouped by type: one tensor of all layers, then the next.
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "convert/foreign_model.h"
#include "convert/hugging_face_config.h"
#include "core/error.h"
#include "core/file.h"

namespace te::convert {
namespace {

config::ModelConfig read_header(const std::filesystem::path& file) {
  std::array<int32_t, 7> header{};
  File in(file);
  const std::string bytes = in.is_open() ? in.read_at(0, sizeof(header)) : "";
  if (bytes.size() < sizeof(header))
    user_error("{}: has no llama2.c header; give a .bin file of its legacy format", file.string());
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  const auto [dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len] = header;
  const bool plausible = dim > 0 && hidden_dim > 0 && n_layers > 0 && n_heads > 0 && n_kv_heads > 0 &&
                         seq_len > 0 && vocab_size != 0 && vocab_size != INT32_MIN && dim % n_heads == 0;
  if (!plausible)
    user_error("{}: the header is not of llama2.c's legacy format: [{}]; give a .bin file of that format",
               file.string(), fmt::join(header, ", "));
  config::ModelConfig model;
  model.family = config::Family::llama;
  model.hidden_size = dim;
  model.ffn_hidden_size = hidden_dim;
  model.num_layers = n_layers;
  model.num_attention_heads = n_heads;
  model.num_query_groups = n_kv_heads;
  model.kv_channels = dim / n_heads;
  model.vocab_size = std::abs(vocab_size);
  model.seq_length = model.max_position_embeddings = seq_len;
  model.tie_word_embeddings = vocab_size > 0;
  check_model(model, file.string());
  return model;
}

}  // namespace

ForeignModel open_llama2c(const std::filesystem::path& file) {
  TensorFiles files;
  const int number = files.open(file);
  const config::ModelConfig m = read_header(file);
  const int64_t dim = m.hidden_size, ffn = m.ffn_hidden_size, kv = m.num_query_groups * m.kv_channels;
  uint64_t offset = 7 * sizeof(int32_t);
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    const StoredTensor tensor{number, offset, FileType::f32, std::move(shape)};
    offset += static_cast<uint64_t>(tensor.numel()) * sizeof(float);
    files.add(name, tensor);
  };
  const auto per_layer = [&](const char* name, const std::vector<int64_t>& shape) {
    for (int64_t layer = 0; layer < m.num_layers; ++layer) add(fmt::format("{}.{}", name, layer), shape);
  };
  add("token_embedding", {m.vocab_size, dim});
  per_layer("rms_att", {dim});
  per_layer("wq", {dim, dim});
  per_layer("wk", {kv, dim});
  per_layer("wv", {kv, dim});
  per_layer("wo", {dim, dim});
  per_layer("rms_ffn", {dim});
  per_layer("w1", {ffn, dim});
  per_layer("w2", {dim, ffn});
  per_layer("w3", {ffn, dim});
  add("rms_final", {dim});
  // Skip the RoPE tables of cos and sin.
  offset += static_cast<uint64_t>(m.seq_length) * static_cast<uint64_t>(m.kv_channels) * sizeof(float);
  if (!m.tie_word_embeddings) add("wcls", {m.vocab_size, dim});
  if (files.bytes_of_file(number) != offset)
    user_error(
        "{}: has {} bytes, must have {} by its header; give a complete file of llama2.c's legacy format",
        file.string(), files.bytes_of_file(number), offset);
  return {file.string(), m, llama2c_layout(m), std::move(files)};
}

}  // namespace te::convert
