// How a ParameterStore divides its flat buffers: regions, buckets, segments and slots.
#include <algorithm>
#include <numeric>

#include "parameters/granules.h"
#include "parameters/parameter_store.h"

namespace te::parameters {
namespace {

/// Alignment of buckets of FP8 bytes. Weights after vectors of multiples of this size are then aligned as if planned
/// alone, so that GEMM selection is the same (kernels/gemm).
constexpr int64_t kByteAlignment = 256;

/// One bucket of each region, empty, in the order of the regions.
std::vector<Bucket> regions() {
  std::vector<Bucket> result;
  for (const auto& [trainable, dropped] : {std::pair{true, false}, {false, false}, {false, true}})
    for (const GradientGroup group : kGradientGroups)
      result.push_back({.group = group, .trainable = trainable, .dropped = dropped});
  return result;
}

bool is_in(const Parameter& parameter, const Bucket& region) {
  return parameter.group == region.group && parameter.trainable == region.trainable &&
         parameter.dropped == region.dropped;
}

}  // namespace

// Sets offsets, buckets and segments of a region's parameters, after those of earlier regions. One rank has a single
// bucket.
void ParameterStore::lay_out(const Bucket& of_region) {
  std::vector<size_t> members;
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (is_in(parameters_[i], of_region)) members.push_back(i);
  int64_t end = flat_size_, begin = end;
  for (size_t i = 0; i < members.size(); ++i) {
    Parameter& parameter = parameters_[members[i]];
    const int64_t count = round_up(parameter.shape.numel(), kGranule);
    parameter.offset = end;
    parameter.columnwise_at =
        parameter.dropped && parameter.two_codes && ranks_of(of_region).size > 1 ? count : 0;
    end += parameter.columnwise_at + count;
    const bool last = i + 1 == members.size();
    if (!last && !ends_bucket(members[i], members[i + 1], end - begin)) continue;
    end = begin + round_up(end - begin, kGranule * ranks_of(of_region).size);
    Bucket bucket = of_region;
    bucket.begin = begin, bucket.end = end;
    end_bucket(bucket, members[i]);
    begin = end;
  }
  flat_size_ = end;
  if (of_region.trainable) trained_size_ = end;
}

std::vector<ParameterStore::LayerEnd>::const_iterator ParameterStore::layer_of(size_t parameter) const {
  return std::find_if(layer_ends_.cbegin(), layer_ends_.cend(),
                      [&](const LayerEnd& layer) { return parameter < layer.parameter; });
}

/// `next`: the next parameter of the region; `elements`: of the bucket so far. Buckets are the same whether they are
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
void ParameterStore::end_bucket(Bucket bucket, size_t last) {
  const ShardRank own = ranks_of(bucket);
  const int64_t count = bucket.size() / own.size;
  segments_.push_back({bucket.begin + own.rank * count, count, shard_size_});
  if (bucket.trainable) shard_size_ += count;
  const auto found = layer_of(last);
  const LayerEnd layer = found != layer_ends_.cend() ? *found : LayerEnd{last + 1, false, chunk_};
  bucket.chunk = layer.chunk;
  const bool shards = bucket.trainable ? layout_.grad_slots > 0 : layout_.value_slots > 0;
  // Adapters and norms without a weight are small, and only GEMMs write to slots.
  const auto end = parameters_.begin() + static_cast<std::ptrdiff_t>(last) + 1;
  const bool has_linear = std::any_of(parameters_.begin(), end, [&](const Parameter& parameter) {
    return parameter.linear && is_in(parameter, bucket) && parameter.offset >= bucket.begin;
  });
  if (shards && layer.shardable && own.size > 1 && has_linear) {
    Region& region = region_of(bucket);
    bucket.sharded = region.num_sharded++;
    region.largest_sharded = std::max(region.largest_sharded, bucket.size());
  }
  buckets_.push_back(bucket);
  bucket_ends_.push_back(last);
}

// Assigns positions in `values`; returns its size in elements.
int64_t ParameterStore::lay_out_values() {
  int64_t end = 0;
  if (!flat_values()) {
    TE_CHECK(layout_.training && !layout_.divides() && !fp32() && !split(),
             "values without which there is nothing to quantize");
    for (Parameter& parameter : parameters_) {
      parameter.has_value = !parameter.dropped && (!parameter.quantized || !parameter.trainable);
      if (parameter.has_value) end += round_up(parameter.shape.numel(), kGranule);
    }
    return end;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    if (bucket.dropped) continue;
    const bool own = shards_values(bucket) || gathers_bytes(bucket);
    bucket.value = end;
    segment.value = own ? end : end + segment.begin - bucket.begin;
    end += own ? segment.count : bucket.size();
  }
  for (const GradientGroup group : kGradientGroups) {
    auto& [first, count] = unquantized_[static_cast<size_t>(group)];
    first = end;
    for (const Parameter& parameter : parameters_)
      if (parameter.group == group && is_unquantized(parameter))
        count += round_up(parameter.shape.numel(), kGranule);
    end += count;
  }
  return end;
}

/// Whether gathering FP8 is smaller: one byte per element, plus an all-reduce of the other 16-bit values, which counts
/// twice.
bool ParameterStore::sends_fewer_bytes(const Bucket& bucket) const {
  if (bucket.dropped) return true;  // there are no values
  if (!layout_.gather_quantized) return false;
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
  if (!layout_.divides() || !(layout_.gather_quantized || layout_.drop_base)) return 0;
  TE_CHECK(layout_.training && dtype_size(layout_.dtype) == 2,
           "FP8 weights are gathered instead of 16-bit values only");
  int64_t end = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    if (ranks_of(bucket).size == 1 || !sends_fewer_bytes(bucket)) continue;
    const bool sharded = shards_values(bucket);
    TE_CHECK(sharded || !bucket.dropped, "weights that are held in FP8 only are in layers");
    end = round_up(end, kByteAlignment);
    bucket.bytes = end;
    segment.bytes = sharded ? end : end + segment.begin - bucket.begin;
    end += sharded ? segment.count : bucket.size();
  }
  for (Parameter& parameter : parameters_) {
    parameter.has_bytes =
        (parameter.dropped || parameter.quantized) && gathers_bytes(buckets_[bucket_at(parameter.offset)]);
    if (parameter.has_bytes) parameter.has_value = false;
  }
  return end;
}

// Sets the sizes of the slots, in elements.
void ParameterStore::lay_out_slots() {
  for (const Bucket& bucket : buckets_) {
    if (!shards_values(bucket)) continue;
    Region& region = region_of(bucket);
    int64_t& largest = gathers_bytes(bucket) ? region.largest_of_bytes : region.largest_of_values;
    largest = std::max(largest, bucket.size());
  }
  for (Region& region : regions_) region.largest_of_bytes = round_up(region.largest_of_bytes, kByteAlignment);
}

// Assigns positions in `grads`: full buckets, segments, then the vectors of sharded layers. Returns its size in
// elements.
int64_t ParameterStore::lay_out_grads() {
  int64_t end = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    Segment& segment = segments_[i];
    if (!bucket.trainable) continue;
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
  for (Parameter& parameter : parameters_) {
    parameter.dropped = layout.drop_base && parameter.quantized_once;
    parameter.has_value = !parameter.dropped;
  }
  for (const Bucket& region : regions()) lay_out(region);
  pass_order_.resize(buckets_.size());
  std::iota(pass_order_.begin(), pass_order_.end(), size_t{0});
  std::ranges::sort(pass_order_, [&](size_t a, size_t b) { return bucket_ends_[a] < bucket_ends_[b]; });
  const int64_t num_bytes = lay_out_bytes();
  lay_out_slots();
  plan.add(values, "parameters", MemoryKind::parameters, layout.dtype, {lay_out_values()});
  if (num_bytes > 0) plan.add(bytes, "parameters.fp8", MemoryKind::fp8_weights, DType::u8, {num_bytes});
  for (const Bucket& region : regions()) plan_slots(plan, region);
  if (num_ones_ > 0) plan.add(planned_ones_, "ones", MemoryKind::data, layout.dtype, {num_ones_});
  if (!layout.training) return;
  if (!fp32()) {
    plan.add(layout.offload_mains ? MemoryPlace::host : MemoryPlace::device, mains, "main_params",
             MemoryKind::main_params, split() ? DType::u16 : DType::f32, {shard_size_});
  }
  plan.add(grads, "main_grads", MemoryKind::main_grads, layout.grad_dtype, {lay_out_grads()});
  plan.add(flags, "granule_flags", MemoryKind::optimizer, DType::u8, {trained_size_ / kGranule});
}

void ParameterStore::plan_slots(MemoryPlan& plan, const Bucket& of_region) {
  Region& region = region_of(of_region);
  constexpr std::array<const char*, kGradientGroups.size()> kSuffixes{"", ".experts", ".stage"};
  const std::string suffix = std::string(kSuffixes[static_cast<size_t>(of_region.group)]) +
                             (of_region.trainable ? "" : ".untrained");
  const auto add = [&](PlannedTensor& slots, const char* name, MemoryKind kind, DType dtype, int count,
                       int64_t largest) {
    if (count > 0 && largest > 0) plan.add(slots, name + suffix, kind, dtype, {count, largest});
  };
  const int values_at_once = num_value_slots(of_region);
  add(region.value_slots, "parameters.gathered", MemoryKind::parameters, layout_.dtype, values_at_once,
      region.largest_of_values);
  add(region.byte_slots, "parameters.fp8_gathered", MemoryKind::fp8_weights, DType::u8, values_at_once,
      region.largest_of_bytes);
  if (!layout_.training || !of_region.trainable) return;
  add(region.grad_slots, "main_grads.of_a_microbatch", MemoryKind::main_grads, layout_.grad_dtype,
      num_grad_slots(of_region), region.largest_sharded);
}

std::vector<Bucket> ParameterStore::ranges(size_t first, size_t end) const {
  std::vector<Bucket> result;
  for (Bucket range : regions()) {
    for (size_t i = first; i < end; ++i) {
      if (!is_in(parameters_[i], range)) continue;
      if (range.size() == 0) range.begin = parameters_[i].offset;
      range.end = parameters_[i].end();
    }
    if (range.size() > 0) result.push_back(range);
  }
  return result;
}

}  // namespace te::parameters
