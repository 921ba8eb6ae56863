#include "parameters/parameter_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/profile.h"
#include "core/random.h"
#include "kernels/common/granule.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/param_split/param_split.h"

namespace te::parameters {
namespace {

constexpr int64_t kGranule = kernels::kAdamWGranule;
/// Alignment of buckets of FP8 bytes. Weights after vectors of multiples of this size are then aligned as if planned
/// alone, so that GEMM selection is the same (kernels/gemm).
constexpr int64_t kByteAlignment = 256;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Parameter* ParameterStore::add(ParameterSpec spec) {
  if (spec.name.empty()) spec.name = spec.id.name();
  Parameter parameter;
  parameter.shape = spec.shard.local();
  static_cast<ParameterSpec&>(parameter) = std::move(spec);
  count_ += parameter.shape.numel();
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

// --- layout ------------------------------------------------------------------------------------------------

// Sets offsets, buckets and segments of a group's parameters, after those of earlier groups. One rank has a single
// bucket.
void ParameterStore::lay_out(GradientGroup group) {
  std::vector<size_t> members;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].group == group) members.push_back(i);
  int64_t end = flat_size_, begin = end;
  for (size_t i = 0; i < members.size(); ++i) {
    Parameter& parameter = parameters_[members[i]];
    parameter.offset = end;
    end += round_up(parameter.shape.numel(), kGranule);
    const bool last = i + 1 == members.size();
    if (!last && !ends_bucket(members[i], members[i + 1], end - begin)) continue;
    end = round_up(end, kGranule * layout_.of(group).size);
    end_bucket(group, begin, end, members[i]);
    begin = end;
  }
  flat_size_ = end;
}

std::vector<ParameterStore::LayerEnd>::const_iterator ParameterStore::layer_of(size_t parameter) const {
  return std::find_if(layer_ends_.cbegin(), layer_ends_.cend(),
                      [&](const LayerEnd& layer) { return parameter < layer.parameter; });
}

/// `next`: the next parameter of the group; `elements`: of the bucket so far. Buckets are the same whether they are
/// sharded or not, so that gradient norms are bitwise equal.
bool ParameterStore::ends_bucket(size_t parameter, size_t next, int64_t elements) const {
  if (layout_.of(parameters_[parameter].group).size == 1) return false;
  if (parameters_[parameter].tied() || parameters_[next].tied()) return true;
  const auto layer = layer_of(parameter), other = layer_of(next);
  if (layer == other) return false;
  const bool differs =
      other != layer_ends_.cend() && (other->shardable != layer->shardable || other->chunk != layer->chunk);
  return elements >= layout_.bucket_size || differs;
}

/// `last`: index of the bucket's last parameter.
void ParameterStore::end_bucket(GradientGroup group, int64_t begin, int64_t end, size_t last) {
  const ShardRank& own = layout_.of(group);
  const int64_t count = (end - begin) / own.size;
  segments_.push_back({begin + own.rank * count, count, shard_size_});
  shard_size_ += count;
  const auto found = layer_of(last);
  const LayerEnd layer = found != layer_ends_.cend() ? *found : LayerEnd{last + 1, false, chunk_};
  Bucket& bucket =
      buckets_.emplace_back(Bucket{.begin = begin, .end = end, .group = group, .chunk = layer.chunk});
  bucket_ends_.push_back(last);
  if (layout_.grad_slots == 0 || !layer.shardable || own.size == 1) return;
  Group& shared = of(group);
  bucket.sharded = shared.num_sharded++;
  shared.largest_sharded = std::max(shared.largest_sharded, bucket.size());
}

// Assigns positions in `values`; returns its size in elements.
int64_t ParameterStore::lay_out_values() {
  int64_t end = 0;
  if (!flat_values()) {
    TE_CHECK(layout_.training && !layout_.divides() && !fp32() && !split(),
             "values without which there is nothing to quantize");
    for (Parameter& parameter : parameters_) {
      parameter.has_value = !parameter.quantized;
      if (parameter.has_value) end += round_up(parameter.shape.numel(), kGranule);
    }
    return end;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    const bool own = shards_values(bucket) || gathers_bytes(bucket);
    bucket.value = end;
    segment.value = own ? end : end + segment.begin - bucket.begin;
    end += own ? segment.count : bucket.size();
  }
  for (const GradientGroup group : kGradientGroups) {
    Group& shared = of(group);
    shared.unquantized = end;
    for (const Parameter& parameter : parameters_)
      if (parameter.group == group && is_unquantized(parameter))
        shared.unquantized_size += round_up(parameter.shape.numel(), kGranule);
    end += shared.unquantized_size;
  }
  return end;
}

/// Whether gathering FP8 is smaller: one byte per element, plus an all-reduce of the other 16-bit values, which counts
/// twice.
bool ParameterStore::sends_fewer_bytes(const Bucket& bucket) const {
  int64_t others = bucket.size();
  bool any = false;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.quantized || parameter.offset < bucket.begin || parameter.offset >= bucket.end) continue;
    others -= round_up(parameter.shape.numel(), kGranule);
    any = true;
  }
  return any && bucket.size() + 4 * others < 2 * bucket.size();
}

bool ParameterStore::is_unquantized(const Parameter& parameter) const {
  return !parameter.has_bytes && gathers_bytes(buckets_[bucket_at(parameter.offset)]);
}

// Assigns positions in `bytes`; returns its size in elements.
int64_t ParameterStore::lay_out_bytes() {
  if (!layout_.gather_quantized || !layout_.divides()) return 0;
  TE_CHECK(layout_.training && dtype_size(layout_.dtype) == 2,
           "FP8 weights are gathered instead of 16-bit values only");
  int64_t end = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    if (layout_.of(bucket.group).size == 1 || !sends_fewer_bytes(bucket)) continue;
    const bool sharded = shards_values(bucket);
    end = round_up(end, kByteAlignment);
    bucket.bytes = end;
    segment.bytes = sharded ? end : end + segment.begin - bucket.begin;
    end += sharded ? segment.count : bucket.size();
  }
  for (Parameter& parameter : parameters_) {
    parameter.has_bytes = parameter.quantized && gathers_bytes(buckets_[bucket_at(parameter.offset)]);
    if (parameter.has_bytes) parameter.has_value = false;
  }
  return end;
}

// Sets the sizes of the slots, in elements.
void ParameterStore::lay_out_slots() {
  for (const Bucket& bucket : buckets_) {
    if (!shards_values(bucket)) continue;
    Group& group = of(bucket.group);
    int64_t& largest = gathers_bytes(bucket) ? group.largest_of_bytes : group.largest_of_values;
    largest = std::max(largest, bucket.size());
  }
  for (Group& group : groups_) group.largest_of_bytes = round_up(group.largest_of_bytes, kByteAlignment);
}

// Assigns positions in `grads`: full buckets, segments, then the vectors of sharded layers. Returns its size in
// elements.
int64_t ParameterStore::lay_out_grads() {
  int64_t end = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    const bool sharded = shards_grads(bucket);
    bucket.grad = end;
    segment.grad = sharded ? end : end + segment.begin - bucket.begin;
    end += sharded ? segment.count : bucket.size();
  }
  vectors_ = end;
  for (const Parameter& parameter : parameters_)
    if (!parameter.linear && shards_grads(buckets_[bucket_at(parameter.offset)]))
      vector_size_ += round_up(parameter.shape.numel(), kGranule);
  return end + vector_size_;
}

void ParameterStore::plan(MemoryPlan& plan, const StoreLayout& layout) {
  layout_ = layout;
  TE_CHECK((layout.value_slots == 0 || layout.grad_slots > 0) && (layout.grad_slots == 0 || layout.divides()),
           "{} slots of gradients and {} of values of buckets that are not divided", layout.grad_slots,
           layout.value_slots);
  TE_CHECK(!layout.offload_mains || !layout.drop_values,
           "passes cannot read FP32 master weights in host memory");
  for (const GradientGroup group : kGradientGroups) lay_out(group);
  pass_order_.resize(buckets_.size());
  std::iota(pass_order_.begin(), pass_order_.end(), size_t{0});
  std::sort(pass_order_.begin(), pass_order_.end(),
            [&](size_t a, size_t b) { return bucket_ends_[a] < bucket_ends_[b]; });
  const int64_t num_bytes = lay_out_bytes();
  lay_out_slots();
  plan.add(values, "parameters", MemoryKind::parameters, layout.dtype, {lay_out_values()});
  if (num_bytes > 0) plan.add(bytes, "parameters.fp8", MemoryKind::fp8_weights, DType::u8, {num_bytes});
  for (const GradientGroup group : kGradientGroups) plan_slots(plan, group);
  if (!layout.training) return;
  if (!fp32()) {
    plan.add(layout.offload_mains ? MemoryPlace::host : MemoryPlace::device, mains, "main_params",
             MemoryKind::main_params, split() ? DType::u16 : DType::f32, {shard_size_});
  }
  plan.add(grads, "main_grads", MemoryKind::main_grads, layout.grad_dtype, {lay_out_grads()});
  plan.add(flags, "granule_flags", MemoryKind::optimizer, DType::u8, {flat_size_ / kGranule});
}

void ParameterStore::plan_slots(MemoryPlan& plan, GradientGroup which) {
  Group& group = of(which);
  const std::string suffix = which == GradientGroup::dense ? "" : ".experts";
  const auto add = [&](Tensor& slots, const char* name, MemoryKind kind, DType dtype, int count,
                       int64_t largest) {
    if (count > 0 && largest > 0) plan.add(slots, name + suffix, kind, dtype, {count, largest});
  };
  add(group.value_slots, "parameters.gathered", MemoryKind::parameters, layout_.dtype, num_value_slots(which),
      group.largest_of_values);
  add(group.byte_slots, "parameters.fp8_gathered", MemoryKind::fp8_weights, DType::u8, num_value_slots(which),
      group.largest_of_bytes);
  if (!layout_.training) return;
  add(group.grad_slots, "main_grads.of_a_microbatch", MemoryKind::main_grads, layout_.grad_dtype,
      num_grad_slots(which), group.largest_sharded);
}

void ParameterStore::bind(const Context& context) {
  if (fp32() && !layout_.divides()) mains = values;
  int64_t dense_value = 0, vector = vectors_;  // with dropped values, and with sharded gradients
  std::array<int64_t, kGradientGroups.size()> unquantized{};
  for (Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[bucket_at(parameter.offset)];
    const int64_t count = parameter.shape.numel(), within = parameter.offset - bucket.begin;
    if (parameter.has_bytes) {
      parameter.bytes = part(bytes_of(bucket), within, count).view(parameter.shape);
    } else if (gathers_bytes(bucket)) {
      int64_t& at = unquantized[static_cast<size_t>(parameter.group)];
      parameter.value = part(unquantized_parameters(parameter.group), at, count).view(parameter.shape);
      at += round_up(count, kGranule);
    } else if (flat_values()) {
      parameter.value = part(values_of(bucket), within, count).view(parameter.shape);
    } else if (parameter.has_value) {
      parameter.value = part(values, dense_value, count).view(parameter.shape);
      dense_value += round_up(count, kGranule);
    }
    if (layout_.training && shards_grads(bucket) && !parameter.linear) {
      parameter.grad = part(grads, vector, count).view(parameter.shape);
      vector += round_up(count, kGranule);
    } else if (layout_.training) {
      parameter.grad = part(grads_of(bucket), within, count).view(parameter.shape);
    }
    if (fp32()) {
      parameter.main = parameter.value;
    } else if (layout_.training && layout_.of(parameter.group).size == 1 && !split()) {
      const Segment& segment = segments_[bucket_at(parameter.offset)];
      parameter.main = main_at(segment, within, count).fp32.view(parameter.shape);
    }
  }
  if (!layout_.training) return;
  zeroed_granules_.clear();
  for (const Bucket& bucket : buckets_) zeroed_granules_.push_back(bucket.size() / kGranule);
  for (const Parameter& parameter : parameters_)
    zeroed_granules_[bucket_at(parameter.offset)] -= granules_written(parameter);
  if (!OpObserver::is_tracing()) write_flags(context);
}

// A GEMM writes the parameter but not the gap after it, so the last granule is zeroed if it has a gap.
int64_t ParameterStore::granules_written(const Parameter& parameter) {
  return parameter.linear ? parameter.shape.numel() / kGranule : 0;
}

void ParameterStore::write_flags(const Context& context) const {
  std::vector<uint8_t> host(static_cast<size_t>(flat_size_ / kGranule), kernels::kGranuleZeroed);
  for (const Parameter& parameter : parameters_) {
    const bool counted =
        (parameter.sharing == Sharing::sharded || layout_.tensor_rank == 0) && !parameter.copy;
    const int bits =
        (parameter.decay ? kernels::kGranuleDecays : 0) | (counted ? kernels::kGranuleCounted : 0);
    const int64_t written = granules_written(parameter);
    const auto first = host.begin() + parameter.offset / kGranule;
    std::fill_n(first, written, static_cast<uint8_t>(bits));
    std::fill_n(first + written, kernels::granules_of(parameter.shape.numel()) - written,
                static_cast<uint8_t>(bits | kernels::kGranuleZeroed));
  }
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

std::vector<Bucket> ParameterStore::ranges(size_t first, size_t end) const {
  std::vector<Bucket> result;
  for (const GradientGroup group : kGradientGroups) {
    Bucket range{.group = group};
    for (size_t i = first; i < end; ++i) {
      if (parameters_[i].group != group) continue;
      if (range.size() == 0) range.begin = parameters_[i].offset;
      range.end = parameters_[i].end();
    }
    if (range.size() > 0) result.push_back(range);
  }
  return result;
}

size_t ParameterStore::bucket_at(int64_t flat) const {
  const auto found = std::upper_bound(buckets_.begin(), buckets_.end(), flat,
                                      [](int64_t at, const Bucket& bucket) { return at < bucket.end; });
  TE_CHECK(found != buckets_.end(), "element {} of {}", flat, flat_size_);
  return static_cast<size_t>(found - buckets_.begin());
}

Tensor ParameterStore::values_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(values, bucket.value, bucket.size());
  return part(of(bucket.group).value_slots.slice_rows(bucket.sharded % num_value_slots(bucket.group), 1), 0,
              bucket.size());
}

Tensor ParameterStore::bytes_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(bytes, bucket.bytes, bucket.size());
  return part(of(bucket.group).byte_slots.slice_rows(bucket.sharded % num_value_slots(bucket.group), 1), 0,
              bucket.size());
}

Tensor ParameterStore::grads_of(const Bucket& bucket) const {
  if (!shards_grads(bucket)) return part(grads, bucket.grad, bucket.size());
  return part(of(bucket.group).grad_slots.slice_rows(bucket.sharded % num_grad_slots(bucket.group), 1), 0,
              bucket.size());
}

Tensor ParameterStore::grad_of(int64_t begin, int64_t end) const {
  const Segment& segment = segments_[bucket_at(begin)];
  TE_CHECK(begin >= segment.begin && end <= segment.begin + segment.count,
           "elements {}..{} are not in this rank's segment", begin, end);
  return part(grads, segment.grad + begin - segment.begin, end - begin);
}

MainParams ParameterStore::main_at(const Segment& segment, int64_t within, int64_t count) const {
  if (fp32()) return {.fp32 = part(values, segment.value + within, count)};
  const Tensor main = part(mains, segment.shard + within, count);
  return split() ? MainParams{.value = part(values, segment.value + within, count), .remainder = main}
                 : MainParams{.fp32 = main};
}

MainParams ParameterStore::main_of(const Segment& segment) const {
  return main_at(segment, 0, segment.count);
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
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return main_at(segment, piece.shard - segment.shard, piece.count);
}

std::vector<Tensor> ParameterStore::kept_values(const Parameter& parameter) const {
  if (!shards_values(buckets_[bucket_at(parameter.offset)]) || is_unquantized(parameter))
    return {parameter.has_bytes ? parameter.bytes : parameter.value};
  std::vector<Tensor> result;
  for (const Piece& piece : pieces(parameter))
    result.push_back(parameter.has_bytes ? own_bytes(parameter, piece) : own_values(parameter, piece));
  return result;
}

// For a bucket that is sharded or gathers bytes.
Tensor ParameterStore::own_values(const Parameter& parameter, const Piece& piece) const {
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return part(values, segment.value + piece.shard - segment.shard, piece.count);
}

// For a bucket that gathers bytes.
Tensor ParameterStore::own_bytes(const Parameter& parameter, const Piece& piece) const {
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return part(bytes, segment.bytes + piece.shard - segment.shard, piece.count);
}

std::vector<ParameterStore::Part> ParameterStore::parts_to_cast(const Parameter& parameter) const {
  std::vector<Part> result;
  for (const Piece& piece : pieces(parameter)) {
    const Tensor& full = parameter.value;
    result.push_back({own_values(parameter, piece),
                      parameter.has_bytes ? own_bytes(parameter, piece)
                                          : part(full.view({full.numel()}), piece.local, piece.count)});
  }
  return result;
}

std::vector<ParameterStore::Part> ParameterStore::unquantized_parts(GradientGroup group) const {
  std::vector<Part> result;
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group || !is_unquantized(parameter)) continue;
    for (const Part& part : parts_to_cast(parameter)) result.push_back(part);
  }
  return result;
}

// --- gradients ---------------------------------------------------------------------------------------------

// In sharded buckets only vectors accumulate before they are reduced: GEMMs overwrite their slot, its gaps are zeroed
// with each reduction (comm/gradient_reducer.h), and the first sum of a segment is written.
void ParameterStore::reset_gradients(const Context& context) {
  for (Parameter& parameter : parameters_) parameter.grad_stale = parameter.linear;
  if (layout_.grad_slots == 0) {
    const int64_t zeroed = std::accumulate(zeroed_granules_.begin(), zeroed_granules_.end(), int64_t{0});
    return kernels::zero_granules(context, {.x = grads, .flags = flags, .count = zeroed});
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (shards_grads(bucket)) continue;
    kernels::zero_granules(context, {.x = grads_of(bucket),
                                     .flags = part(flags, bucket.begin / kGranule, bucket.size() / kGranule),
                                     .count = zeroed_granules_[i]});
  }
  if (vector_size_ > 0) context.zero(part(grads, vectors_, vector_size_));
}

void ParameterStore::mark_linear_grads_stale(int64_t begin, int64_t end) {
  for (Parameter& parameter : parameters_) {
    if (parameter.offset >= end || parameter.end() <= begin) continue;
    if (parameter.linear && shards_grads(buckets_[bucket_at(parameter.offset)])) parameter.grad_stale = true;
  }
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
  // Halves are computed from FP32 values, which use the gradients' memory: it is not in use yet.
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
