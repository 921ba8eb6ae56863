// A model of another program under te-train's names: its config, and its weights. te-convert writes it as a checkpoint;
// training starts from it and te-generate runs it as it is.
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
  /// UserError when the files lack a part of the layout, or have it in another shape.
  ForeignModel(std::string title, const config::ModelConfig& model, std::vector<ParameterLayout> layout,
               TensorFiles files);

  std::string title() const override { return title_; }
  std::string config() const override;
  std::optional<checkpoint::TensorInfo> info(std::string_view parameter) const override;
  void read(std::string_view parameter, const checkpoint::Block& block, float* out) const override;
  const config::ModelConfig& model() const { return model_; }
  const std::vector<ParameterLayout>& parameters() const { return layout_; }
  /// UserError when the model has no such parameter.
  const ParameterLayout& at(std::string_view parameter) const;
  /// BF16 where all parts of the parameter are (or in FP8), else FP32 (which holds every value of F16, too).
  DType dtype(const ParameterLayout& parameter) const;

  /// Rows [first, first + count) in the parameter's dtype, or as FP32. A part whose rows are not in order is kept in
  /// memory as a whole until another one is read. UserError when a file is damaged, or a value is not finite.
  void read_rows(const ParameterLayout& parameter, int64_t first, int64_t count, std::byte* out) const;
  void read_rows(const ParameterLayout& parameter, int64_t first, int64_t count, float* out) const;

 private:
  void read_part(const Part& part, int64_t cols, int64_t first, int64_t count, DType as,
                 std::byte* out) const;
  const std::byte* whole(const Part& part, DType as) const;
  /// UserError that names the tensor when a value is not finite.
  void read_values(const StoredTensor& stored, const Part& part, int64_t first, int64_t count, DType as,
                   std::byte* out) const;

  std::string title_;
  config::ModelConfig model_;
  std::vector<ParameterLayout> layout_;
  TensorFiles files_;

  struct Whole {
    std::string name;
    DType as = DType::f32;
    std::vector<std::byte> bytes;
  };
  mutable Whole whole_;
};

/// A folder with config.json and model.safetensors, or its shards and model.safetensors.index.json. UserError when it
/// is none, holds a model that te-train does not have, or tensors without a place in it.
ForeignModel open_hugging_face(const std::filesystem::path& folder);

/// True for what the two functions around this line open: a folder with config.json that is not a checkpoint, or a .bin
/// file.
bool is_foreign_model(const std::filesystem::path& path);

/// A file of llama2.c: the legacy layout (version 0), FP32. UserError when its size is not what its header says.
ForeignModel open_llama2c(const std::filesystem::path& file);

/// One of these two.
ForeignModel open_foreign_model(const std::filesystem::path& path);

/// The weights of the model at `path`: a checkpoint of te-train (a step folder, a checkpoint directory or a run's
/// folder), a Hugging Face folder or a file of llama2.c. UserError when there is none.
std::unique_ptr<checkpoint::WeightSource> open_weights(const std::filesystem::path& path);

/// Rows of `size`-byte elements: out[r][c] = in[c][first + r] for r < rows, c < cols, where in has `width` columns.
void transpose(const std::byte* in, int64_t width, int64_t first, int64_t rows, int64_t cols, size_t size,
               std::byte* out);

}  // namespace te::convert
