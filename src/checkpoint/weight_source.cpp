#include "checkpoint/weight_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "checkpoint/safetensors_header.h"
#include "checkpoint/training_state.h"
#include "core/error.h"

namespace te::checkpoint {

int64_t TensorInfo::cols() const {
  return shape.empty() ? 1 : std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

TensorInfo checked_info(const WeightSource& source, int64_t vocab_size, const std::string& name,
                        const parameters::Parameter& parameter) {
  std::optional<TensorInfo> stored = source.info(name);
  if (!stored)
    user_error("{}: tensor {} is missing; use a checkpoint of the same model", source.title(),
               safetensors::quote_name(name));
  const Shape& wanted = parameter.shard.global;
  bool fits = static_cast<int>(stored->shape.size()) == wanted.rank();
  for (int axis = 0; fits && axis < wanted.rank(); ++axis) {
    const bool padded = axis == 0 && has_vocabulary_rows(parameter.id.role);
    fits = padded ? stored->shape[0] >= vocab_size : stored->shape[axis] == wanted[axis];
  }
  if (!fits)
    user_error(
        "{}: tensor {} has shape [{}], but this config needs {}; use the config that it was saved with",
        source.title(), safetensors::quote_name(name), fmt::join(stored->shape, ", "), wanted.str());
  return *std::move(stored);
}

int64_t available(const TensorInfo& stored, const Block& block) {
  return std::clamp<int64_t>(stored.rows() * block.width - block.first, 0, block.count);
}

std::vector<float> read_shard(const WeightSource& source, int64_t vocab_size,
                              const parameters::Parameter& parameter) {
  const TensorInfo stored = checked_info(source, vocab_size, parameter.name, parameter);
  std::vector<float> values(static_cast<size_t>(parameter.shape.numel()), 0.0f);
  float* out = values.data();
  for (Block block : blocks_of(parameter.shard, 0, parameter.shape.numel())) {
    const int64_t whole = block.count;
    block.count = available(stored, block);
    if (block.count > 0) source.read(parameter.name, block, out);
    out += whole;
  }
  return values;
}

}  // namespace te::checkpoint
