// Interface to the trained weights of a model under te-train's parameter names. Sources are a te-train checkpoint
// (Reader), a Hugging Face folder and a llama2.c file (convert::ForeignModel). Training (checkpoint.init_from) and
// generation read their shards through it. This file also handles rows that pad the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block.h"
#include "core/dtype.h"
#include "parameters/parameter_store.h"
#include "parameters/stored_codes.h"

namespace te::checkpoint {

/// Dtype and shape of a stored tensor.
struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const;  ///< elements per row: the product of all sizes except the first
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Name of the source in messages: its path, optionally with its kind.
  virtual std::string title() const = 0;
  /// The config of the weights as YAML: at least its section `model`.
  virtual std::string config() const = 0;
  /// The names of all parameters.
  virtual std::vector<std::string> names() const = 0;
  /// Hash of the weights' values as they are stored; reads all of them unless the source has checksums.
  virtual uint64_t hash() const = 0;
  /// Empty if the source has no tensor of this name.
  virtual std::optional<TensorInfo> info(std::string_view name) const = 0;
  /// Reads a block of the tensor, as a matrix [rows, cols], to FP32. UserError if a file is damaged or a value is not
  /// finite.
  virtual void read(std::string_view name, const Block& block, float* out) const = 0;
  /// The FP8 codes of a part of a weight, if all of it is stored in FP8 and its scales have columns of the same width.
  virtual std::optional<parameters::StoredCodes> read_codes(
      std::string_view /*name*/, const parameters::ParameterShard& /*shard*/) const {
    return std::nullopt;
  }
};

/// Shape and dtype of the stored tensor `name`, which is the parameter or one of its Adam moments. UserError if it is
/// missing or has a different shape; the number of rows that pad the vocabulary (beyond vocab_size) may differ.
TensorInfo checked_info(const WeightSource& source, int64_t vocab_size, const std::string& name,
                        const parameters::Parameter& parameter);

/// Number of the block's elements that a stored tensor has; the others belong to padding rows that it lacks.
int64_t available(const TensorInfo& stored, const Block& block);

/// Elements [first, first + count) of a shard of the tensor `name` to `out`, with zeros in padding rows that the source
/// lacks. `stored`: its checked_info().
void read_shard(const WeightSource& source, const std::string& name, const TensorInfo& stored,
                const parameters::ParameterShard& shard, int64_t first, int64_t count, float* out);

}  // namespace te::checkpoint
