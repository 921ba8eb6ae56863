#include "convert/foreign_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/reader.h"
#include "convert/adapter.h"
#include "convert/hugging_face_config.h"
#include "core/error.h"
#include "core/stored_values.h"

namespace te::convert {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Square tiles, so that the cache lines of both input and output are reused.
template <class T>
void transpose_as(const std::byte* in, int64_t width, int64_t first, int64_t rows, int64_t cols,
                  std::byte* out) {
  constexpr int64_t kTile = 64;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const int64_t r1 = std::min(r0 + kTile, rows), c1 = std::min(c0 + kTile, cols);
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c)
          std::memcpy(out + static_cast<size_t>(r * cols + c) * sizeof(T),
                      in + static_cast<size_t>(c * width + first + r) * sizeof(T), sizeof(T));
    }
  }
}

}  // namespace

void transpose(const std::byte* in, int64_t width, int64_t first, int64_t rows, int64_t cols, size_t size,
               std::byte* out) {
  size == 2 ? transpose_as<uint16_t>(in, width, first, rows, cols, out)
            : transpose_as<uint32_t>(in, width, first, rows, cols, out);
}

ForeignModel::ForeignModel(std::string title, const config::ModelConfig& model,
                           std::vector<ParameterLayout> layout, TensorFiles files)
    : title_(std::move(title)), model_(model), layout_(std::move(layout)), files_(std::move(files)) {
  for (const ParameterLayout& parameter : layout_) {
    for (const Part& part : parameter.parts) {
      const StoredTensor* stored = files_.find(part.name);
      if (stored == nullptr) {
        const auto other = files_.untyped().find(part.name);
        if (other != files_.untyped().end())
          user_error("{}: tensor {} is {}, must be F32, BF16 or F16; use the model that is not quantized",
                     title_, part.name, other->second);
        user_error("{}: tensor {} is missing; the files must contain the complete model of the config",
                   title_, part.name);
      }
      if (stored->shape != part.shape)
        user_error("{}: tensor {} is {}, must be {} by the config; use files and config of the same model",
                   files_.path_of(*stored), part.name, shape_text(stored->shape), shape_text(part.shape));
    }
  }
}

const ParameterLayout& ForeignModel::at(std::string_view parameter) const {
  for (const ParameterLayout& found : layout_)
    if (found.name == parameter) return found;
  user_error("{}: has no tensor {}", title_, parameter);
}

std::string ForeignModel::config() const {
  return config::to_yaml(complete_config(model_));
}

uint64_t ForeignModel::hash() const {
  if (!hash_) hash_ = files_.hash();
  return *hash_;
}

std::vector<std::string> ForeignModel::names() const {
  std::vector<std::string> names;
  for (const ParameterLayout& parameter : layout_) names.push_back(parameter.name);
  return names;
}

std::optional<checkpoint::TensorInfo> ForeignModel::info(std::string_view parameter) const {
  for (const ParameterLayout& found : layout_)
    if (found.name == parameter) return checkpoint::TensorInfo{dtype(found), found.shape};
  return std::nullopt;
}

DType ForeignModel::dtype(const ParameterLayout& parameter) const {
  return std::ranges::all_of(parameter.parts,
                             [&](const Part& part) {
                               const FileType type = files_.find(part.name)->type;
                               return type == FileType::bf16 || type == FileType::e4m3;
                             })
             ? DType::bf16
             : DType::f32;
}

void ForeignModel::read_values(const StoredTensor& stored, const Part& part, int64_t first, int64_t count,
                               DType as, std::byte* out) const {
  files_.read(stored, first, count, as, out);
  if (!are_finite(as, out, count))
    user_error(
        "{}: tensor {} has infinite or NaN values, which no model can be trained from; use another copy "
        "of the model",
        files_.path_of(stored), part.name);
}

const std::byte* ForeignModel::read_complete(const Part& part, DType as) const {
  if (complete_part_.name != part.name || complete_part_.as != as) {
    complete_part_.name.clear();
    const StoredTensor& stored = *files_.find(part.name);
    const size_t bytes = static_cast<size_t>(stored.numel()) * dtype_size(as);
    if (complete_part_.bytes.size() < bytes) complete_part_.bytes.resize(bytes);
    read_values(stored, part, 0, stored.numel(), as, complete_part_.bytes.data());
    complete_part_.name = part.name;
    complete_part_.as = as;
  }
  return complete_part_.bytes.data();
}

void ForeignModel::read_part(const Part& part, int64_t cols, int64_t first, int64_t count, DType as,
                             std::byte* out) const {
  const size_t size = dtype_size(as), row_bytes = static_cast<size_t>(cols) * size;
  switch (part.order) {
    case Order::rows:
      return read_values(*files_.find(part.name), part, first * cols, count * cols, as, out);
    case Order::transposed:
      return transpose(read_complete(part, as), part.rows(), first, count, cols, size, out);
    case Order::permuted:
      const std::byte* all = read_complete(part, as);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(out + static_cast<size_t>(i) * row_bytes,
                    all + static_cast<size_t>((*part.theirs)[static_cast<size_t>(first + i)]) * row_bytes,
                    row_bytes);
  }
}

void ForeignModel::read_rows(const ParameterLayout& parameter, int64_t first, int64_t count,
                             std::byte* out) const {
  const DType as = dtype(parameter);
  const size_t row_bytes = static_cast<size_t>(parameter.cols()) * dtype_size(as);
  TE_CHECK(first >= 0 && count >= 0 && first + count <= parameter.rows(), "{}: rows {}+{} of {}",
           parameter.name, first, count, parameter.rows());
  int64_t top = 0;
  for (const Part& part : parameter.parts) {
    const int64_t from = std::max(first, top), to = std::min(first + count, top + part.rows());
    if (from < to)
      read_part(part, parameter.cols(), from - top, to - from, as,
                out + static_cast<size_t>(from - first) * row_bytes);
    top += part.rows();
  }
}

void ForeignModel::read_rows(const ParameterLayout& parameter, int64_t first, int64_t count,
                             float* out) const {
  auto* bytes = reinterpret_cast<std::byte*>(out);
  const int64_t values = count * parameter.cols();
  if (dtype(parameter) == DType::f32) return read_rows(parameter, first, count, bytes);
  read_rows(parameter, first, count, bytes + 2 * values);
  widen_bf16_in_place(bytes, values);
}

void ForeignModel::read(std::string_view parameter, const checkpoint::Block& block, float* out) const {
  if (block.count == 0) return;
  const ParameterLayout& layout = at(parameter);
  const int64_t cols = layout.cols(), first = block.first / block.width,
                count = (block.end() - 1) / block.width + 1 - first;
  const auto rows = checkpoint::Block::rows(first, count, cols);
  if (block == rows) return read_rows(layout, first, count, out);
  std::vector<float> values(static_cast<size_t>(rows.count));
  read_rows(layout, first, count, values.data());
  checkpoint::for_each_overlap(rows, block, [&](int64_t from, int64_t to, int64_t run) {
    std::copy_n(values.data() + from, run, out + to);
  });
}

// The codes of a part in te-train's order of rows.
bool ForeignModel::read_part_codes(const Part& part, int64_t cols, parameters::StoredCodes& all,
                                   int64_t top) const {
  const StoredTensor& stored = *files_.find(part.name);
  const Multipliers& multipliers = *stored.multipliers;
  const int64_t group = multipliers.whole ? 0 : multipliers.block_cols;
  if (top == 0) all.group = group;
  if (group != all.group) return false;
  std::vector<std::byte> codes(static_cast<size_t>(stored.numel()));
  files_.read(stored, 0, stored.numel(), DType::e4m3, codes.data());
  for (int64_t row = 0; row < part.rows(); ++row) {
    const int64_t theirs = part.theirs ? (*part.theirs)[static_cast<size_t>(row)] : row;
    std::memcpy(all.codes.data() + (top + row) * cols, codes.data() + theirs * cols,
                static_cast<size_t>(cols));
    const auto scales = multipliers.values.begin() + theirs / multipliers.block_rows * multipliers.cols;
    all.scales.insert(all.scales.end(), scales, scales + multipliers.cols);
  }
  return true;
}

std::optional<parameters::StoredCodes> ForeignModel::read_codes(
    std::string_view parameter, const parameters::ParameterShard& shard) const {
  const ParameterLayout& layout = at(parameter);
  for (const Part& part : layout.parts)
    if (files_.find(part.name)->type != FileType::e4m3 || part.order == Order::transposed)
      return std::nullopt;
  const int64_t cols = layout.cols();
  parameters::StoredCodes all;
  all.codes.resize(static_cast<size_t>(layout.rows() * cols));
  int64_t top = 0;
  for (const Part& part : layout.parts) {
    if (!read_part_codes(part, cols, all, top)) return std::nullopt;
    top += part.rows();
  }
  if (shard.is_full()) return all;
  const int64_t groups = static_cast<int64_t>(all.scales.size()) / layout.rows(),
                first = all.group > 0 ? shard.first_col / all.group : 0,
                count = all.group > 0 ? shard.cols / all.group : 1;
  const bool whole_groups = shard.cols == cols || all.group == 0 ||
                            (shard.first_col % all.group == 0 && shard.cols % all.group == 0);
  if (!whole_groups) return std::nullopt;
  parameters::StoredCodes own{.codes = {}, .group = all.group, .scales = {}};
  for (const parameters::ParameterShard::Rows& rows : shard.rows)
    for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
      const auto codes = all.codes.begin() + row * cols + shard.first_col;
      own.codes.insert(own.codes.end(), codes, codes + shard.cols);
      const auto scales = all.scales.begin() + row * groups + first;
      own.scales.insert(own.scales.end(), scales, scales + (shard.cols == cols ? groups : count));
    }
  return own;
}

bool is_foreign_model(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return path.extension() == ".bin";
  return std::filesystem::is_regular_file(path / "config.json", error) &&
         !std::filesystem::exists(path / "manifest.json", error) &&
         !std::filesystem::exists(path / "latest", error);
}

ForeignModel open_foreign_model(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) ? open_hugging_face(path) : open_llama2c(path);
}

std::filesystem::path resolve_weights(const std::filesystem::path& path) {
  return is_foreign_model(path) ? path : checkpoint::Reader(path).folder();
}

std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& path) {
  if (is_foreign_model(path)) return std::make_unique<ForeignModel>(open_foreign_model(path));
  auto reader = std::make_unique<checkpoint::Reader>(path);
  if (!reader->manifest().base) return reader;
  return open_adapted(*reader);
}

}  // namespace te::convert
