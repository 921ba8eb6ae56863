#include "parameters/parameter_store.h"

#include <algorithm>
#include <utility>

#include "core/random.h"
#include "kernels/common/granule.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/param_split/param_split.h"

namespace te::parameters {
namespace {

constexpr int64_t kGranule = kernels::kAdamWGranule;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Parameter* ParameterStore::add(ParameterSpec spec) {
  Parameter parameter;
  parameter.shape = spec.shard.local();
  static_cast<ParameterSpec&>(parameter) = std::move(spec);
  count_ += parameter.shape.numel();
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

// --- layout ------------------------------------------------------------------------------------------------

// Offsets, buckets and segments. One data rank needs no cuts: everything is one bucket.
void ParameterStore::lay_out() {
  const bool one = layout_.data_size == 1;
  int64_t end = 0, begin = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].offset = end;
    end += round_up(parameters_[i].shape.numel(), kGranule);
    const bool last = i + 1 == parameters_.size();
    const bool layer_end = std::find(layer_ends_.begin(), layer_ends_.end(), i + 1) != layer_ends_.end();
    const bool full = layer_end && end - begin >= layout_.bucket_size;
    const bool alone = parameters_[i].tied() || (!last && parameters_[i + 1].tied());
    if (!last && (one || !(full || alone))) continue;
    end = round_up(end, kGranule * layout_.data_size);
    const int64_t count = (end - begin) / layout_.data_size;
    segments_.push_back({begin + layout_.data_rank * count, count, shard_size_});
    buckets_.push_back({begin, end});
    shard_size_ += count;
    begin = end;
  }
  flat_size_ = end;
}

// Elements of the buffer of values.
int64_t ParameterStore::lay_out_values() {
  if (flat_values()) return flat_size_;
  TE_CHECK(layout_.training && layout_.data_size == 1 && !fp32() && !split(),
           "values without which there is nothing to quantize");
  int64_t end = 0;
  for (Parameter& parameter : parameters_) {
    parameter.has_value = !parameter.quantized;
    if (parameter.has_value) end += round_up(parameter.shape.numel(), kGranule);
  }
  return end;
}

void ParameterStore::plan(MemoryPlan& plan, const StoreLayout& layout) {
  layout_ = layout;
  lay_out();
  plan.add(values, "parameters", MemoryKind::parameters, layout.dtype, {lay_out_values()});
  if (!layout.training) return;
  if (!fp32())
    plan.add(mains, "main_params", MemoryKind::main_params, split() ? DType::u16 : DType::f32, {shard_size_});
  plan.add(grads, "main_grads", MemoryKind::main_grads, layout.grad_dtype, {flat_size_});
  plan.add(flags, "granule_flags", MemoryKind::optimizer, DType::u8, {flat_size_ / kGranule});
}

void ParameterStore::bind(const Context& context) {
  if (fp32() && layout_.data_size == 1) mains = values;
  std::vector<uint8_t> host(static_cast<size_t>(flat_size_ / kGranule), kernels::kGranuleZeroed);
  int64_t value_end = 0;  // where values are dropped
  for (Parameter& parameter : parameters_) {
    const int64_t count = parameter.shape.numel();
    if (parameter.has_value) {
      parameter.value =
          part(values, flat_values() ? parameter.offset : value_end, count).view(parameter.shape);
      value_end += round_up(count, kGranule);
    }
    if (layout_.training) parameter.grad = part(grads, parameter.offset, count).view(parameter.shape);
    if (fp32()) {
      parameter.main = parameter.value;
    } else if (layout_.training && layout_.data_size == 1 && !split()) {
      parameter.main = part(mains, parameter.offset, count).view(parameter.shape);
    }
    const bool counted =
        (parameter.sharing == Sharing::sharded || layout_.tensor_rank == 0) && !parameter.copy;
    const int bits =
        (parameter.decay ? kernels::kGranuleDecays : 0) | (counted ? kernels::kGranuleCounted : 0);
    // A GEMM writes the parameter and not the gap behind it, so a last granule that has both is zeroed.
    const int64_t written = parameter.linear ? count / kGranule : 0;
    const auto first = host.begin() + parameter.offset / kGranule;
    std::fill_n(first, written, static_cast<uint8_t>(bits));
    std::fill_n(first + written, kernels::granules_of(count) - written,
                static_cast<uint8_t>(bits | kernels::kGranuleZeroed));
  }
  if (!layout_.training) return;
  zeroed_granules_ =
      std::count_if(host.begin(), host.end(), [](int bits) { return (bits & kernels::kGranuleZeroed) != 0; });
  context.copy_to_device(flags, host.data());
  context.synchronize();  // the host vector must outlive the copy
}

// --- parts -------------------------------------------------------------------------------------------------

Tensor ParameterStore::part(const Tensor& flat, int64_t first, int64_t count) {
  TE_CHECK(first >= 0 && first + count <= flat.numel(), "elements {}+{} of {}", first, count,
           flat.shape.str());
  return {static_cast<char*>(flat.data) + static_cast<size_t>(first) * dtype_size(flat.dtype),
          flat.dtype,
          {count}};
}

Bucket ParameterStore::range(size_t first, size_t end) const {
  return {parameters_[first].offset, end < parameters_.size() ? parameters_[end].offset : flat_size_};
}

MainParams ParameterStore::main_at(int64_t flat, int64_t shard, int64_t count) const {
  if (fp32()) return {.fp32 = part(values, flat, count)};
  const Tensor main = part(mains, shard, count);
  return split() ? MainParams{.value = part(values, flat, count), .remainder = main}
                 : MainParams{.fp32 = main};
}

MainParams ParameterStore::main_of(const Segment& segment) const {
  return main_at(segment.begin, segment.shard, segment.count);
}

Tensor ParameterStore::flags_of(const Segment& segment) const {
  return part(flags, segment.begin / kGranule, segment.count / kGranule);
}

std::vector<ParameterStore::Piece> ParameterStore::pieces(const Parameter& parameter) const {
  std::vector<Piece> result;
  for (const Segment& segment : segments_) {
    const int64_t from = std::max(parameter.offset, segment.begin);
    const int64_t to = std::min(parameter.end(), segment.begin + segment.count);
    if (from < to) {
      result.push_back({from - parameter.offset, to - from, segment.shard + from - segment.begin});
    }
  }
  return result;
}

MainParams ParameterStore::main_of(const Parameter& parameter, const Piece& piece) const {
  return main_at(parameter.offset + piece.local, piece.shard, piece.count);
}

// --- gradients ---------------------------------------------------------------------------------------------

void ParameterStore::reset_gradients(const Context& context) {
  kernels::zero_granules(context, {.x = grads, .flags = flags, .count = zeroed_granules_});
  for (Parameter& parameter : parameters_) parameter.grad_stale = parameter.linear;
}

void ParameterStore::check_gradients(int64_t begin, int64_t end) const {
  for (const Parameter& parameter : parameters_) {
    TE_CHECK(!parameter.grad_stale || parameter.offset >= end || parameter.end() <= begin,
             "{}: its gradient is read, but no GEMM has written it in this step", parameter.name);
  }
}

// --- values ------------------------------------------------------------------------------------------------

void ParameterStore::initialize(const Context& context, uint64_t seed) {
  for (const Parameter& parameter : parameters_) initialize(context, seed, parameter);
  cast_values(context);
}

void ParameterStore::initialize(const Context& context, uint64_t seed, const Parameter& parameter) const {
  for (const Piece& piece : pieces(parameter)) initialize(context, seed, parameter, piece);
}

void ParameterStore::initialize(const Context& context, uint64_t seed, const Parameter& parameter,
                                const Piece& piece) const {
  const MainParams main = main_of(parameter, piece);
  const ParameterShard& shard = parameter.shard;
  // Halves are made from FP32 numbers, which pass through the gradients' memory: it is not in use yet.
  const int64_t most = main.fp32 ? piece.count : static_cast<int64_t>(grads.bytes() / sizeof(float));
  for (const ParameterShard::Extent& extent : shard.extents(piece.local, piece.local + piece.count)) {
    for (int64_t at = 0; at < extent.count; at += most) {
      const int64_t count = std::min(most, extent.count - at);
      const MainParams target = main.part(extent.local - piece.local + at, count);
      const Tensor fp32 = target.fp32 ? target.fp32 : Tensor{grads.data, DType::f32, {count}};
      if (parameter.init == Init::normal) {
        kernels::fill_normal(context, fp32, parameter.std, seed, stream_of(parameter.name),
                             {.local_cols = shard.cols,
                              .first_local = extent.in_range + at,
                              .global_row = extent.row,
                              .global_col = shard.first_col,
                              .global_cols = shard.global_cols()});
      } else {
        kernels::fill_value(context, fp32, parameter.init == Init::ones ? 1.0f : 0.0f);
      }
      if (!target.fp32) kernels::split_params(context, {fp32, target.value, target.remainder});
    }
  }
}

void ParameterStore::cast_values(const Context& context) {
  if (fp32() || split()) return;
  if (!flat_values()) {
    for (const Parameter& parameter : parameters_)
      if (parameter.has_value) kernels::cast(context, parameter.main, parameter.value);
    return;
  }
  for (const Segment& segment : segments_) kernels::cast(context, main_of(segment).fp32, value_of(segment));
}

}  // namespace te::parameters
