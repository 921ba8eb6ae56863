// Trained weights of a whole model under te-train's parameter names, wherever they are stored: a checkpoint of te-train
// (Reader), a Hugging Face folder or a file of llama2.c (convert::ForeignModel). Training (checkpoint.init_from) and
// generation read their shards through this interface; the rule for rows that pad the vocabulary is here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/block.h"
#include "core/dtype.h"
#include "parameters/parameter_store.h"

namespace te::checkpoint {

/// A tensor as it is stored.
struct TensorInfo {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;

  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t cols() const;  ///< of a row: the product of all sizes but the first
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Names the source in messages: its path, and perhaps what it is.
  virtual std::string title() const = 0;
  /// The config that the weights belong to, as YAML: at least its section `model`.
  virtual std::string config() const = 0;
  /// Nothing when the source has no tensor of this name.
  virtual std::optional<TensorInfo> info(std::string_view name) const = 0;
  /// A block of the tensor seen as [rows, cols], as FP32. UserError when a file is damaged or a value is not finite.
  virtual void read(std::string_view name, const Block& block, float* out) const = 0;
};

/// Only the embedding and the output layer have a row for each token, and rows after the last token that pad the
/// vocabulary. How many those are depends on the tensor-parallel ranks of the run that stored them.
bool has_vocabulary_rows(std::string_view parameter);

/// Shape and dtype of the stored tensor `name`, which is the parameter or one of its Adam moments. UserError when it is
/// missing or of another shape; rows that pad the vocabulary (beyond vocab_size) may be any number.
TensorInfo checked_info(const WeightSource& source, int64_t vocab_size, const std::string& name,
                        const parameters::Parameter& parameter);

/// Elements of the block that a tensor has; the others belong to rows of padding that it lacks.
int64_t available(const TensorInfo& stored, const Block& block);

/// This rank's shard of a parameter in its own order, [parameter.shape] as FP32, with zeros in rows of padding that the
/// source lacks. UserError as above.
std::vector<float> read_shard(const WeightSource& source, int64_t vocab_size,
                              const parameters::Parameter& parameter);

}  // namespace te::checkpoint
