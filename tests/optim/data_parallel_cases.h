// A model of parameters only, divided over any grid of ranks, with synthetic gradients; shared by the tests of the
// distributed optimizer on the CPU and on GPUs. The expected sums over ranks are known, so a one-rank optimizer that
// receives them is the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/float_types.h"
#include "core/random.h"
#include "optim/optimizer.h"
#include "parallel/groups.h"
#include "testing/testing.h"

namespace te::testing {

using parallel::Axis;
using parallel::Groups;
using parallel::ProcessGrid;
using parameters::ParameterShard;
using parameters::ParameterStore;
using parameters::Sharing;

constexpr int kSteps = 5;

enum class ReadyOrder { nothing, descending, ascending, shuffled, halves };

struct Case {
  DType dtype = DType::f32;
  DType grad_dtype = DType::f32;
  config::MomentDType moment_dtype = config::MomentDType::fp32;  ///< of both
  int64_t bucket_size = 1;
  bool overlap = true;
  ReadyOrder order = ReadyOrder::descending;
  double clip = 0.0;
  /// Gradients are few-bit multiples of a power of two: their sums are exact in any order.
  bool exact = false;
  bool muon = false;  ///< for the weights of fc1 (two matrices in one) and fc2
  config::Offload offload = config::Offload::none;
  /// Layers also have this many experts. A data-parallel rank holds one of them, which it shares with every
  /// experts-th rank; a single rank holds all.
  int experts = 0;
  bool some_untrained = false;  ///< positions, biases of fc1 and weights of fc2 are not trained

  std::string str() const {
    return fmt::format(
        "{} values {}, gradients {}, moments {}, buckets of {}, overlap {}, ready {}, clip {}, offload {}, "
        "{} experts, some untrained {}",
        muon ? "Muon," : "AdamW,", dtype_name(dtype), dtype_name(grad_dtype), config::to_string(moment_dtype),
        bucket_size, overlap, static_cast<int>(order), clip, config::to_string(offload), experts,
        some_untrained);
  }
};

// --- the model ---------------------------------------------------------------------------------------------

enum class Partition { whole, rows, two_blocks, columns };

struct Definition {
  std::string name;
  Shape shape;  ///< of the full parameter
  Partition partition = Partition::whole;
  Sharing sharing = Sharing::sharded;
  bool decay = false;
  bool tied = false;
  int expert = -1;  ///< index; not an expert's parameter: -1
};

/// Layers whose sizes are divisible only by the number of tensor-parallel ranks (up to 4).
inline std::vector<std::vector<Definition>> model_layers(int experts) {
  std::vector<std::vector<Definition>> layers;
  layers.push_back({{"words", {28, 13}, Partition::rows, Sharing::sharded, true, true},
                    {"positions", {7, 13}, Partition::whole, Sharing::replicated, true}});
  for (int64_t i = 0; i < 4; ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    layers.push_back(
        {{prefix + "norm", {13}, Partition::whole, Sharing::partial},
         {prefix + "fc1.weight", {24 + 8 * i, 13}, Partition::two_blocks, Sharing::sharded, true},
         {prefix + "fc1.bias", {24 + 8 * i}, Partition::two_blocks},
         {prefix + "fc2.weight", {13, 12 + 64 * i}, Partition::columns, Sharing::sharded, true},
         {prefix + "fc2.bias", {13}, Partition::whole, Sharing::partial}});
    for (int expert = 0; expert < experts; ++expert) {
      const std::string name = fmt::format("{}experts.{}.", prefix, expert);
      auto& layer = layers.back();
      const auto at =
          layer.begin() + 3;  // between the others, as if a layer had parameters after its experts
      layer.insert(
          at, {{name + "fc1", {16 + 8 * i, 13}, Partition::two_blocks, Sharing::sharded, true, false, expert},
               {name + "bias", {16 + 8 * i}, Partition::two_blocks, Sharing::sharded, false, false, expert}});
    }
  }
  layers.push_back({{"final_norm", {131}, Partition::whole, Sharing::partial}});
  return layers;
}

inline ParameterShard shard_of(const Definition& definition, int rank, int ranks) {
  const int64_t rows = definition.shape[0];
  switch (definition.partition) {
    case Partition::rows:
      return ParameterShard::of_rows(definition.shape, {rows}, rank, ranks);
    case Partition::two_blocks:
      return ParameterShard::of_rows(definition.shape, {rows / 2, rows / 2}, rank, ranks);
    case Partition::columns:
      return ParameterShard::of_columns(definition.shape, rank, ranks);
    case Partition::whole:
      break;
  }
  return ParameterShard::full(definition.shape);
}

/// ParameterSpec::matrices of a layer's weight.
inline std::vector<int64_t> matrices_of(const Definition& definition) {
  const int64_t rows = definition.shape[0];
  if (definition.partition == Partition::columns) return {rows};
  if (definition.partition == Partition::two_blocks && definition.shape.rank() == 2)
    return {rows / 2, rows / 2};
  return {};
}

/// Global flat index of every element of a shard.
inline std::vector<size_t> global_indices(const ParameterShard& shard) {
  std::vector<size_t> indices;
  for (const ParameterShard::Rows& range : shard.rows) {
    for (int64_t row = range.first; row < range.first + range.count; ++row) {
      for (int64_t col = 0; col < shard.cols; ++col) {
        indices.push_back(static_cast<size_t>(row * shard.global_cols() + shard.first_col + col));
      }
    }
  }
  return indices;
}

// --- gradients ---------------------------------------------------------------------------------------------

inline float rounded(float value, DType dtype) {
  return dtype == DType::bf16 ? to_float(to_bf16(value)) : value;
}

/// The gradient of a full parameter in one rank's backward pass. `tensor` matters if each rank computes a part, `stage`
/// if two stages do.
inline std::vector<float> found_gradient(const Case& c, const Definition& definition, int step, int data,
                                         int tensor, int stage) {
  const uint64_t seed = stream_of(fmt::format("{} {} {} {} {}", definition.name, step, data,
                                              definition.sharing == Sharing::partial ? tensor : 0,
                                              definition.tied ? stage : 0));
  std::vector<float> values = normal_values(definition.shape.numel(), seed, 0.1f);
  for (float& value : values) {
    // |k| <= 7: the sum of the at most 16 addends fits the 8 bits of BF16.
    if (c.exact) value = std::clamp(std::round(value * 30), -7.0f, 7.0f) / 32;
    value = rounded(value, c.grad_dtype);
  }
  return values;
}

/// The rounded FP32 sum of part(0), ..., part(count - 1), in this order.
template <class Part>
std::vector<float> sum_of(int count, DType dtype, Part&& part) {
  std::vector<float> total = part(0);
  for (int i = 1; i < count; ++i) {
    const std::vector<float> addend = part(i);
    for (size_t k = 0; k < total.size(); ++k) total[k] += addend[k];
  }
  for (float& value : total) value = rounded(value, dtype);
  return total;
}

inline bool is_trained(const Case& c, const Definition& definition) {
  const std::string& name = definition.name;
  return !c.some_untrained ||
         !(name == "positions" || name.ends_with("fc1.bias") || name.ends_with("fc2.weight"));
}

/// Whether a data-parallel rank holds the parameter.
inline bool holds(const Case& c, const Definition& definition, int data, int data_size) {
  return definition.expert < 0 || data_size == 1 || data % c.experts == definition.expert;
}

/// The sum over all ranks: data-parallel ranks, then both stages of a tied parameter, then the tensor-parallel ranks of
/// a partial one.
inline std::vector<float> summed_gradient(const Case& c, const Definition& definition, int step,
                                          const ProcessGrid& grid) {
  const int stages = definition.tied && grid[Axis::pipeline] > 1 ? 2 : 1;
  const int parts = definition.sharing == Sharing::partial ? grid[Axis::tensor] : 1;
  return sum_of(parts, c.grad_dtype, [&](int tensor) {
    return sum_of(stages, c.grad_dtype, [&](int end) {
      const int stage = end == 0 ? 0 : grid[Axis::pipeline] - 1;
      std::vector<int> owners;
      for (int data = 0; data < grid[Axis::data]; ++data)
        if (holds(c, definition, data, grid[Axis::data])) owners.push_back(data);
      return sum_of(static_cast<int>(owners.size()), c.grad_dtype, [&](int i) {
        return found_gradient(c, definition, step, owners[static_cast<size_t>(i)], tensor, stage);
      });
    });
  });
}

/// The loss that the last stage of a data-parallel rank adds; exact in FP32.
inline float found_loss(int step, int data) {
  return 0.5f * static_cast<float>(step) + static_cast<float>(data);
}

// --- a rank ------------------------------------------------------------------------------------------------

inline parameters::ShardRanks ranks_of(const Groups& groups, const ParameterStore& store) {
  parameters::ShardRanks ranks;
  for (const parameters::Parameter& parameter : store.parameters()) {
    const parallel::Communicator& own = groups.gradient_ranks(parameter.group);
    ranks[static_cast<size_t>(parameter.group)] = {own.rank(), own.size()};
  }
  return ranks;
}

/// Parameters and optimizer of one rank.
class Rank {
 public:
  struct Held {
    Definition definition;
    parameters::Parameter* parameter;
    std::vector<size_t> global;  ///< global index of its elements
  };

  Rank(const Context& context, const Groups& groups, const Case& c)
      : case_(c),
        context_(context),
        groups_(groups),
        add_parameters_((add_parameters(), true)),
        optimizer_(options_of(c), store_, groups) {
    store_.plan(plan_,
                {.dtype = c.dtype,
                 .grad_dtype = c.grad_dtype,
                 .ranks = ranks_of(groups, store_),
                 .tensor_rank = groups.tensor().rank(),
                 .bucket_size = c.bucket_size,
                 .offload_mains = c.offload == config::Offload::state,
                 .data_parallel = {.overlap_grad_reduce = c.overlap, .overlap_param_gather = c.overlap}});
    optimizer_.plan(plan_);
    host_memory_ = plan_.allocate_host(context_);
    memory_ = plan_.allocate(context_);
    store_.bind(context_);
    optimizer_.bind(context_);
    store_.initialize(context_, 1234);
    optimizer_.gatherer().gather_all(context_);
  }

  static optim::OptimizerOptions options_of(const Case& c) {
    optim::OptimizerOptions options;
    options.tied_embeddings = true;
    options.optimizer.clip_grad = c.clip;
    if (c.muon) options.optimizer.name = config::OptimizerName::muon;
    options.optimizer.offload = c.offload;
    options.optimizer.exp_avg_dtype = options.optimizer.exp_avg_sq_dtype = c.moment_dtype;
    return options;
  }

  /// A full step of a rank of a grid, with a backward pass that writes gradients layer by layer.
  void step(int step, int poisoned_data = -1, bool poisoned_loss = false) {
    if (step % 2 == 0) optimizer_.prefetch(context_);  // optional
    optimizer_.begin_step(context_);
    // Gradients of earlier microbatches, which a premature reduction would add.
    for (const Held& held : held_) {
      if (held.parameter->trainable)
        write(held.parameter->grad, std::vector<float>(held.global.size(), 1000.0f));
    }
    const int data = groups_.data().rank();
    poisoned_ = poisoned_data == data && !poisoned_loss;
    if (case_.order != ReadyOrder::nothing) {
      optimizer_.reducer().begin(context_);
    } else {
      for (size_t layer = 0; layer + 1 < layer_begin_.size(); ++layer) write_gradients(layer, step);
    }
    for (const size_t layer : layer_order(step)) {
      write_gradients(layer, step);
      announce(layer);
    }
    if (groups_.last_stage() && groups_.tensor().rank() == 0) {
      const float loss = poisoned_loss && poisoned_data == data ? std::numeric_limits<float>::infinity()
                                                                : found_loss(step, data);
      write(optimizer_.loss_sum(), {loss});
    }
    finish_step();
  }

  /// A step of the reference, which holds everything, with the sums over the ranks of another grid.
  void step_with_sums(int step, const ProcessGrid& grid, bool skip = false) {
    optimizer_.begin_step(context_);
    for (const Held& held : held_)
      if (held.parameter->trainable)
        write(held.parameter->grad, summed_gradient(case_, held.definition, step, grid));
    float loss = 0;
    for (int data = 0; data < grid[Axis::data]; ++data) loss += found_loss(step, data);
    write(optimizer_.loss_sum(), {skip ? std::numeric_limits<float>::infinity() : loss});
    finish_step();
  }

  std::vector<float> read(const Tensor& tensor) const {
    std::vector<uint8_t> bytes(tensor.bytes());
    context_.copy_to_host(bytes.data(), tensor);
    context_.synchronize();
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    visit_high_precision(tensor.dtype, [&](auto zero) {
      const auto* typed = reinterpret_cast<const decltype(zero)*>(bytes.data());
      for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(typed[i]);
    });
    return values;
  }
  std::vector<float> read(const optim::Moments& moments) const {
    std::vector<uint8_t> raw(moments.raw_bytes());
    std::vector<float> decoded(static_cast<size_t>(moments.count()));
    moments.copy_raw(context_, raw.data());
    context_.synchronize();
    const void* stored = moments.from_raw(raw.data(), 0, moments.count(), decoded.data());
    std::vector<float> values(decoded.size());
    visit_high_precision(moments.stored_dtype(), [&](auto zero) {
      const auto* typed = static_cast<const decltype(zero)*>(stored);
      for (size_t i = 0; i < values.size(); ++i) values[i] = to_float(typed[i]);
    });
    return values;
  }
  void write(const Tensor& tensor, const std::vector<float>& values) const {
    visit_high_precision(tensor.dtype, [&](auto zero) {
      std::vector<decltype(zero)> typed;
      for (const float value : values) typed.push_back(from_float<decltype(zero)>(value));
      context_.copy_to_device(tensor, typed.data());
      context_.synchronize();
    });
  }

  const Context& context() const { return context_; }
  const Groups& groups() const { return groups_; }
  ParameterStore& store() { return store_; }
  optim::Optimizer& optimizer() { return optimizer_; }
  const std::vector<Held>& held() const { return held_; }
  int64_t layer_begin(size_t layer) const {
    const size_t first = layer_begin_[layer];
    return first < held_.size() ? held_[first].parameter->offset : store_.flat_size();
  }
  size_t num_layers() const { return layer_begin_.size() - 1; }

 private:
  void add_parameters() {
    std::vector<std::vector<Definition>> layers = model_layers(case_.experts);
    const int stages = groups_.grid()[Axis::pipeline], stage = groups_.at()[Axis::pipeline];
    if (stages > 1) layers.push_back({layers.front().front()});
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (static_cast<int>(layer) * stages / static_cast<int>(layers.size()) != stage) continue;
      layer_begin_.push_back(held_.size());
      for (const Definition& definition : layers[layer]) {
        if (!holds(case_, definition, groups_.data().rank(), groups_.data().size())) continue;
        ParameterShard shard = shard_of(definition, groups_.tensor().rank(), groups_.tensor().size());
        std::vector<size_t> indices = global_indices(shard);
        parameters::Parameter* parameter =
            store_.add({.name = definition.name,
                        .shard = std::move(shard),
                        .init = parameters::Init::normal,
                        .std = 0.5f,
                        .decay = definition.decay,
                        .matrices = matrices_of(definition),
                        .sharing = definition.sharing,
                        .copy = definition.tied && stage > 0,
                        .copied = definition.tied && stage == 0 && stages > 1,
                        .group = definition.expert < 0 ? GradientGroup::dense : GradientGroup::expert,
                        .trainable = is_trained(case_, definition)});
        held_.push_back({definition, parameter, std::move(indices)});
      }
      store_.end_layer();
    }
    layer_begin_.push_back(held_.size());
  }

  std::vector<std::pair<int64_t, int64_t>> ranges_of(size_t layer) const {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const parameters::Bucket& range : store_.ranges(layer_begin_[layer], layer_begin_[layer + 1]))
      ranges.emplace_back(range.begin, range.end);
    return ranges;
  }

  std::vector<size_t> layer_order(int step) const {
    std::vector<size_t> order;
    if (case_.order == ReadyOrder::nothing) return order;
    for (size_t layer = 0; layer < num_layers(); ++layer) order.push_back(layer);
    if (case_.order == ReadyOrder::descending || case_.order == ReadyOrder::halves) {
      std::ranges::reverse(order);
    }
    if (case_.order == ReadyOrder::shuffled) {  // a different order on every rank and in every step
      for (size_t i = order.size(); i > 1; --i) {
        const Philox4 random = philox(static_cast<uint64_t>(groups_.rank()), static_cast<uint64_t>(step), i);
        std::swap(order[i - 1], order[random.word[0] % i]);
      }
    }
    return order;
  }

  void announce(size_t layer) {
    for (const auto& [begin, end] : ranges_of(layer)) {
      // In two parts, divided within a parameter.
      const int64_t middle = case_.order == ReadyOrder::halves ? begin + (end - begin) / 3 : begin;
      optimizer_.reducer().ready(context_, middle, end);
      if (middle > begin) optimizer_.reducer().ready(context_, begin, middle);
    }
  }

  void write_gradients(size_t layer, int step) {
    for (size_t i = layer_begin_[layer]; i < layer_begin_[layer + 1]; ++i) {
      const Held& held = held_[i];
      if (!held.parameter->trainable) continue;
      const std::vector<float> whole = found_gradient(case_, held.definition, step, groups_.data().rank(),
                                                      groups_.tensor().rank(), groups_.at()[Axis::pipeline]);
      std::vector<float> own;
      for (const size_t index : held.global) own.push_back(whole[index]);
      if (poisoned_ && i == 0) own.back() = std::numeric_limits<float>::quiet_NaN();
      write(held.parameter->grad, own);
    }
  }

  void finish_step() {
    optimizer_.step(context_, 1e-2f);
    optimizer_.fetch_status(context_);
    context_.synchronize();
    optimizer_.finish_step(optimizer_.status().skipped != 0);
    // The next forward pass reads the values layer by layer.
    for (size_t layer = 0; layer < num_layers(); ++layer) {
      for (const auto& [begin, end] : ranges_of(layer)) optimizer_.gatherer().wait(context_, begin, end);
    }
  }

  Case case_;
  const Context& context_;
  const Groups& groups_;
  ParameterStore store_;
  std::vector<Held> held_;
  std::vector<size_t> layer_begin_;  ///< index into held_ per layer, and the end
  bool poisoned_ = false;            ///< this rank's gradient has a NaN in this step
  bool add_parameters_;
  optim::Optimizer optimizer_;
  MemoryPlan plan_;
  HostBuffer host_memory_;
  DeviceBuffer memory_;
};

/// Grids of a world: tensor and pipeline 1 and 2, the remaining ranks data-parallel.
inline std::vector<ProcessGrid> grids(int world) {
  std::vector<ProcessGrid> result;
  for (const int tensor : {1, 2}) {
    for (const int pipeline : {1, 2}) {
      if (world % (tensor * pipeline) == 0) result.push_back(ProcessGrid::of(world, tensor, 1, pipeline));
    }
  }
  return result;
}

}  // namespace te::testing
