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

void read_shard(const WeightSource& source, const std::string& name, const TensorInfo& stored,
                const parameters::ParameterShard& shard, int64_t first, int64_t count, float* out) {
  for (Block block : blocks_of(shard, first, count)) {
    const int64_t whole = block.count;
    block.count = available(stored, block);
    if (block.count > 0) source.read(name, block, out);
    std::fill(out + block.count, out + whole, 0.0f);
    out += whole;
  }
}

}  // namespace te::checkpoint
