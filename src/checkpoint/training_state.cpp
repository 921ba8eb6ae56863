#include "checkpoint/training_state.h"

#include <utility>

#include "optim/muon.h"

namespace te::checkpoint {
namespace {

using ShardRange = parameters::ParameterStore::ShardRange;

/// Prefixes of the tensor names of parameters and their moments.
constexpr const char* kPrefixes[] = {"", "exp_avg/", "exp_avg_sq/"};

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int axis = 0; axis < shape.rank(); ++axis) dims.push_back(shape[axis]);
  return dims;
}

bool is_saved_here(const parameters::ParameterStore& store, const parameters::Parameter& parameter) {
  if (parameter.copy || !store.saves(parameter)) return false;
  return parameter.sharing == parameters::Sharing::sharded || store.layout().tensor_rank == 0;
}

std::vector<int64_t> stored_shape(const parameters::Parameter& parameter, const ShardRange& range) {
  if (range.count == parameter.shape.numel()) return dims_of(parameter.shape);
  const int64_t cols = parameter.shard.cols;
  if (parameter.shape.rank() == 2 && range.local % cols == 0 && range.count % cols == 0)
    return {range.count / cols, cols};
  return {range.count};
}

/// Calls visit(stored shard, prefix, parameter, range of the store) for all shards that a rank saves; prefix is an
/// element of kPrefixes. has_second(parameter, range) tells whether the range has an exp_avg_sq.
template <class HasSecond, class Visit>
void for_each_shard(const parameters::ParameterStore& store, bool optimizer, HasSecond&& has_second,
                    Visit&& visit) {
  for (const char* prefix : kPrefixes) {
    if (prefix != kPrefixes[0] && !optimizer) continue;
    for (const parameters::Parameter& parameter : store.parameters()) {
      if (!is_saved_here(store, parameter) || (prefix != kPrefixes[0] && !parameter.trainable)) continue;
      for (const ShardRange& range : store.shard_ranges(parameter)) {
        if (prefix == kPrefixes[2] && !has_second(parameter, range)) continue;
        visit(
            StoredShard{prefix + parameter.name, DType::f32, dims_of(parameter.shard.global),
                        stored_shape(parameter, range), blocks_of(parameter.shard, range.local, range.count)},
            prefix, parameter, range);
      }
    }
  }
}

}  // namespace

std::vector<StateTensor> TrainingState::tensors() const {
  const auto& [store, first, second, table, wait] = *this;  // fails to compile when there is another member
  std::vector<StateTensor> all{{"parameters", store->values}};
  // FP32 weights are their own master weights.
  if (!store->fp32()) all.push_back({"main_params", store->mains});
  all.push_back({"exp_avg", first.values});
  all.push_back({"exp_avg.exponents", first.exponents});
  all.push_back({"exp_avg_sq", second.values});
  all.push_back({"exp_avg_sq.exponents", second.exponents});
  if (table != nullptr) {
    const auto add = [&](const char* name, const Tensor& tensor, bool in_checkpoints) {
      all.push_back({name, tensor, true, in_checkpoints});
    };
    const bool stored = table->history.is_planned();  // else each step computes the scales
    add("fp8.scale", table->scale, stored);
    add("fp8.amax_history", table->history, stored);
    add("fp8.history_position", table->position, stored);
    add("fp8.amax", table->amax, false);
    add("fp8.last_amax", table->last_amax, false);
    add("fp8.counters", table->counters, false);
    add("fp8.predicted_scales", table->predicted_scales, false);
    add("fp8.tensor_states", table->tensor_states, false);
  }
  std::erase_if(all, [](const StateTensor& state) { return !state.tensor.is_planned(); });
  return all;
}

std::vector<Block> blocks_of(const parameters::ParameterShard& shard, int64_t first, int64_t count) {
  std::vector<Block> blocks;
  for (const parameters::ParameterShard::Extent& extent : shard.extents(first, first + count))
    blocks.push_back({shard.first_col, shard.cols, extent.row * shard.cols + extent.in_range, extent.count});
  return blocks;
}

int64_t StoredShard::count() const {
  int64_t count = 0;
  for (const Block& block : blocks) count += block.count;
  return count;
}

std::vector<StoredShard> stored_shards(const parameters::ParameterStore& store, bool optimizer,
                                       config::OptimizerName name) {
  std::vector<StoredShard> result;
  for_each_shard(
      store, optimizer,
      [&](const parameters::Parameter& parameter, const ShardRange&) {
        return !optim::has_one_moment(name, parameter);
      },
      [&](StoredShard stored, const char*, const parameters::Parameter&, const ShardRange&) {
        result.push_back(std::move(stored));
      });
  return result;
}

std::vector<SavedShard> shards_to_save(const TrainingState& state, bool optimizer) {
  const parameters::ParameterStore& store = *state.parameters;
  std::vector<SavedShard> result;
  const auto has_second = [&](const parameters::Parameter&, const ShardRange& range) {
    return state.exp_avg_sq.contains(range.shard, range.count);
  };
  for_each_shard(store, optimizer, has_second,
                 [&](StoredShard stored, const char* prefix, const parameters::Parameter& parameter,
                     const ShardRange& range) {
                   SavedShard& saved = result.emplace_back(SavedShard{std::move(stored), {}, {}});
                   if (prefix == kPrefixes[0]) {
                     saved.main = store.main_of(parameter, range);
                     saved.dtype = saved.main.stored_dtype();
                   } else {
                     const optim::Moments& moments =
                         prefix == kPrefixes[1] ? state.exp_avg : state.exp_avg_sq;
                     saved.moment = moments.part(range.shard, range.count);
                     saved.dtype = moments.stored_dtype();
                   }
                 });
  return result;
}

SavedShard SavedShard::part(int64_t first, int64_t count) const {
  SavedShard result;
  if (moment.values) {
    result.moment = moment.part(first, count);
  } else {
    result.main = main.part(first, count);
  }
  return result;
}

void SavedShard::copy_raw(const Context& context, void* raw) const {
  if (moment.values) return moment.copy_raw(context, raw);
  main.copy_raw(context, raw);
}

const void* SavedShard::from_raw(const void* raw, int64_t first, int64_t count, float* converted) const {
  if (moment.values) return moment.from_raw(raw, first, count, converted);
  return main.from_raw(raw, first, count, converted);
}

bool has_fp8_state(const TrainingState& state) {
  return state.scales != nullptr && state.scales->size() > 0 && state.scales->history;
}

bool saves_fp8(const parameters::StoreLayout& layout, GradientGroup group) {
  // The ranks of other groups include the tensor-parallel ones.
  return (group != GradientGroup::dense || layout.tensor_rank == 0) && layout.of(group).rank == 0;
}

bool saves_fp8(const TrainingState& state) {
  if (!has_fp8_state(state)) return false;
  for (int i = 0; i < state.scales->size(); ++i)
    if (saves_fp8(state.parameters->layout(), state.scales->info(i).group)) return true;
  return false;
}

Fp8Operand operand_of(const fp8::OperandInfo& info) {
  return {info.linear.name(), fp8::role_name(info.role), fp8_max(info.format)};
}

Fp8State read_fp8(const Context& context, const TrainingState& training) {
  const fp8::ScaleTable& table = *training.scales;
  const auto n = static_cast<size_t>(table.size());
  Fp8State state{.history_len = table.history.dim(0), .position = 0, .rows = {}};
  std::vector<float> scale(n), history(static_cast<size_t>(table.history.numel()));
  context.copy_to_host(scale.data(), table.scale);
  context.copy_to_host(history.data(), table.history);
  context.copy_to_host(&state.position, table.position);
  context.synchronize();
  for (size_t i = 0; i < n; ++i) {
    const fp8::OperandInfo& info = table.info(static_cast<int>(i));
    if (!saves_fp8(training.parameters->layout(), info.group)) continue;
    Fp8State::Row row{.operand = operand_of(info), .history = {}};
    if (scale[i] != fp8::kUnknownScale) row.scale = scale[i];
    for (size_t at = i; at < history.size(); at += n) row.history.push_back(history[at]);
    state.rows.push_back(std::move(row));
  }
  return state;
}

}  // namespace te::checkpoint
