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

// Sets offsets, buckets and segments. One data-parallel rank has a single bucket.
void ParameterStore::lay_out() {
  int64_t end = 0, begin = 0;
  auto layer = layer_ends_.cbegin();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].offset = end;
    end += round_up(parameters_[i].shape.numel(), kGranule);
    while (layer != layer_ends_.cend() && layer->parameter <= i) ++layer;
    if (!ends_bucket(i, end - begin, layer)) continue;
    end = round_up(end, kGranule * layout_.data_size);
    end_bucket(begin, end, layer != layer_ends_.cend() ? *layer : LayerEnd{i + 1, false, chunk_});
    begin = end;
  }
  flat_size_ = end;
}

/// `elements`: of the bucket so far; `layer`: the parameter's. Buckets are the same whether they are sharded or not, so
/// that gradient norms are bitwise equal.
bool ParameterStore::ends_bucket(size_t parameter, int64_t elements,
                                 std::vector<LayerEnd>::const_iterator layer) const {
  const size_t behind = parameter + 1;
  if (behind == parameters_.size()) return true;
  if (layout_.data_size == 1) return false;
  if (parameters_[parameter].tied() || parameters_[behind].tied()) return true;
  if (layer == layer_ends_.cend() || layer->parameter != behind) return false;
  const auto next = layer + 1;
  const bool other =
      next != layer_ends_.cend() && (next->shardable != layer->shardable || next->chunk != layer->chunk);
  return elements >= layout_.bucket_size || other;
}

void ParameterStore::end_bucket(int64_t begin, int64_t end, const LayerEnd& layer) {
  const int64_t count = (end - begin) / layout_.data_size;
  segments_.push_back({begin + layout_.data_rank * count, count, shard_size_});
  shard_size_ += count;
  Bucket& bucket = buckets_.emplace_back(Bucket{.begin = begin, .end = end, .chunk = layer.chunk});
  if (layout_.grad_slots == 0 || !layer.shardable) return;
  bucket.sharded = num_sharded_++;
  largest_sharded_ = std::max(largest_sharded_, bucket.size());
}

// Assigns positions in `values`; returns its size in elements.
int64_t ParameterStore::lay_out_values() {
  int64_t end = 0;
  if (!flat_values()) {
    TE_CHECK(layout_.training && layout_.data_size == 1 && !fp32() && !split(),
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
  unquantized_ = end;
  for (const Parameter& parameter : parameters_)
    if (is_unquantized(parameter)) unquantized_size_ += round_up(parameter.shape.numel(), kGranule);
  return end + unquantized_size_;
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
  if (!layout_.gather_quantized || layout_.data_size == 1) return 0;
  TE_CHECK(layout_.training && dtype_size(layout_.dtype) == 2,
           "FP8 weights are gathered instead of 16-bit values only");
  int64_t end = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    if (!sends_fewer_bytes(bucket)) continue;
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
    int64_t& largest = gathers_bytes(bucket) ? largest_of_bytes_ : largest_of_values_;
    largest = std::max(largest, bucket.size());
  }
  largest_of_bytes_ = round_up(largest_of_bytes_, kByteAlignment);
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
  TE_CHECK(
      (layout.value_slots == 0 || layout.grad_slots > 0) && (layout.grad_slots == 0 || layout.data_size > 1),
      "{} slots of gradients and {} of values with {} data-parallel ranks", layout.grad_slots,
      layout.value_slots, layout.data_size);
  TE_CHECK(!layout.offload_mains || !layout.drop_values,
           "passes cannot read FP32 master weights in host memory");
  lay_out();
  const int64_t num_bytes = lay_out_bytes();
  lay_out_slots();
  plan.add(values, "parameters", MemoryKind::parameters, layout.dtype, {lay_out_values()});
  if (num_bytes > 0) plan.add(bytes, "parameters.fp8", MemoryKind::fp8_weights, DType::u8, {num_bytes});
  const auto add_slots = [&](Tensor& slots, const char* name, MemoryKind kind, DType dtype, int count,
                             int64_t largest) {
    if (count > 0 && largest > 0)
      plan.add(slots, name, kind, dtype, {std::min(count, num_sharded_), largest});
  };
  add_slots(value_slots, "parameters.gathered", MemoryKind::parameters, layout.dtype, layout.value_slots,
            largest_of_values_);
  add_slots(byte_slots, "parameters.fp8_gathered", MemoryKind::fp8_weights, DType::u8, layout.value_slots,
            largest_of_bytes_);
  if (!layout.training) return;
  if (!fp32()) {
    plan.add(layout.offload_mains ? MemoryPlace::host : MemoryPlace::device, mains, "main_params",
             MemoryKind::main_params, split() ? DType::u16 : DType::f32, {shard_size_});
  }
  plan.add(grads, "main_grads", MemoryKind::main_grads, layout.grad_dtype, {lay_out_grads()});
  add_slots(grad_slots, "main_grads.of_a_microbatch", MemoryKind::main_grads, layout.grad_dtype,
            layout.grad_slots, largest_sharded_);
  plan.add(flags, "granule_flags", MemoryKind::optimizer, DType::u8, {flat_size_ / kGranule});
}

void ParameterStore::bind(const Context& context) {
  if (fp32() && layout_.data_size == 1) mains = values;
  int64_t dense_value = 0, vector = vectors_;  // with dropped values, and with sharded gradients
  int64_t loose = unquantized_;
  for (Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[bucket_at(parameter.offset)];
    const int64_t count = parameter.shape.numel(), within = parameter.offset - bucket.begin;
    if (parameter.has_bytes) {
      parameter.bytes = part(bytes_of(bucket), within, count).view(parameter.shape);
    } else if (gathers_bytes(bucket)) {
      parameter.value = part(values, loose, count).view(parameter.shape);
      loose += round_up(count, kGranule);
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
    } else if (layout_.training && layout_.data_size == 1 && !split()) {
      parameter.main = part(mains, parameter.offset, count).view(parameter.shape);
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

Bucket ParameterStore::range(size_t first, size_t end) const {
  return {parameters_[first].offset, end < parameters_.size() ? parameters_[end].offset : flat_size_};
}

size_t ParameterStore::bucket_at(int64_t flat) const {
  const auto found = std::upper_bound(buckets_.begin(), buckets_.end(), flat,
                                      [](int64_t at, const Bucket& bucket) { return at < bucket.end; });
  TE_CHECK(found != buckets_.end(), "element {} of {}", flat, flat_size_);
  return static_cast<size_t>(found - buckets_.begin());
}

Tensor ParameterStore::values_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(values, bucket.value, bucket.size());
  return part(value_slots.slice_rows(bucket.sharded % num_value_slots(), 1), 0, bucket.size());
}

Tensor ParameterStore::bytes_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(bytes, bucket.bytes, bucket.size());
  return part(byte_slots.slice_rows(bucket.sharded % num_value_slots(), 1), 0, bucket.size());
}

Tensor ParameterStore::grads_of(const Bucket& bucket) const {
  if (!shards_grads(bucket)) return part(grads, bucket.grad, bucket.size());
  return part(grad_slots.slice_rows(bucket.sharded % grad_slots.dim(0), 1), 0, bucket.size());
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

std::vector<ParameterStore::Part> ParameterStore::unquantized_parts() const {
  std::vector<Part> result;
  for (const Parameter& parameter : parameters_) {
    if (!is_unquantized(parameter)) continue;
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
