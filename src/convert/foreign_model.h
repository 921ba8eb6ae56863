// The config and weights of another program's model under te-train's names. te-convert writes it as a checkpoint;
// training can start from it and te-generate can run it without conversion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/weight_source.h"
#include "config/config.h"
#include "convert/layout.h"
#include "convert/tensor_files.h"

namespace te::convert {

class ForeignModel final : public checkpoint::WeightSource {
 public:
  /// UserError if the files lack a part of the layout or have it in another shape.
  ForeignModel(std::string title, const config::ModelConfig& model, std::vector<ParameterLayout> layout,
               TensorFiles files);

  std::string title() const override { return title_; }
  std::string config() const override;
  std::vector<std::string> names() const override;
  uint64_t hash() const override;
  std::optional<checkpoint::TensorInfo> info(std::string_view parameter) const override;
  void read(std::string_view parameter, const checkpoint::Block& block, float* out) const override;
  std::optional<parameters::StoredCodes> read_codes(std::string_view parameter,
                                                    const parameters::ParameterShard& shard) const override;
  const config::ModelConfig& model() const { return model_; }
  const std::vector<ParameterLayout>& parameters() const { return layout_; }
  /// UserError if the model has no such parameter.
  const ParameterLayout& at(std::string_view parameter) const;
  /// BF16 if all parts of the parameter are BF16 or FP8, else FP32 (which also represents every F16 value).
  DType dtype(const ParameterLayout& parameter) const;

  /// Rows [first, first + count) in the parameter's dtype, or as FP32. A transposed or permuted part is read completely
  /// and stays in memory until another one is read. UserError if a file is damaged or a value is not finite.
  void read_rows(const ParameterLayout& parameter, int64_t first, int64_t count, std::byte* out) const;
  void read_rows(const ParameterLayout& parameter, int64_t first, int64_t count, float* out) const;

 private:
  void read_part(const Part& part, int64_t cols, int64_t first, int64_t count, DType as,
                 std::byte* out) const;
  bool read_part_codes(const Part& part, int64_t cols, parameters::StoredCodes& all, int64_t top) const;
  const std::byte* read_complete(const Part& part, DType as) const;
  /// UserError that names the tensor if a value is not finite.
  void read_values(const StoredTensor& stored, const Part& part, int64_t first, int64_t count, DType as,
                   std::byte* out) const;

  std::string title_;
  config::ModelConfig model_;
  std::vector<ParameterLayout> layout_;
  TensorFiles files_;

  struct CompletePart {
    std::string name;
    DType as = DType::f32;
    std::vector<std::byte> bytes;
  };
  mutable CompletePart complete_part_;
  mutable std::optional<uint64_t> hash_;
};

/// Opens a folder with config.json and model.safetensors, or with shards and model.safetensors.index.json. UserError if
/// the folder lacks these, has a model that te-train does not support, or has tensors that do not belong to the model.
ForeignModel open_hugging_face(const std::filesystem::path& folder);

/// True for what open_hugging_face() or open_llama2c() opens: a folder with config.json that is not a checkpoint, or a
/// .bin file.
bool is_foreign_model(const std::filesystem::path& path);

/// Opens a file of llama2.c: the legacy layout (version 0), FP32. UserError if its size does not match its header.
ForeignModel open_llama2c(const std::filesystem::path& file);

/// open_hugging_face() for a folder, else open_llama2c().
ForeignModel open_foreign_model(const std::filesystem::path& path);

/// The step folder of a checkpoint of te-train (the latest one of a checkpoint directory or a run folder), or the
/// unchanged path of a foreign model. UserError if there is no checkpoint.
std::filesystem::path resolve_weights(const std::filesystem::path& path);

/// The weights of the model at `path`: a checkpoint of te-train (a step folder, a checkpoint directory or a run
/// folder), a Hugging Face folder or a file of llama2.c; of an adapter checkpoint its base with the adapter. UserError
/// if there is none.
std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& path);

/// Transposes `size`-byte elements: out[r][c] = in[c][first + r] for r < rows, c < cols, where in has `width` columns.
void transpose(const std::byte* in, int64_t width, int64_t first, int64_t rows, int64_t cols, size_t size,
               std::byte* out);

}  // namespace te::convert
