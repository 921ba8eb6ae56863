#include "parameters/parameter_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/random.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/param_split/param_split.h"
#include "parameters/granules.h"

namespace te::parameters {
namespace {

constexpr int64_t kScratch = 1 << 20;  ///< minimum number of elements for which initialization needs scratch

}  // namespace

Parameter* ParameterStore::add(ParameterSpec spec) {
  if (spec.name.empty()) spec.name = spec.id.name();
  if (trains_ && !trains_(spec.id)) spec.trainable = false;
  Parameter parameter;
  parameter.shape = spec.shard.local();
  static_cast<ParameterSpec&>(parameter) = std::move(spec);
  count_ += parameter.shape.numel();
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

void ParameterStore::bind(const Context& context) {
  ones_ = planned_ones_;
  if (ones_) kernels::fill_value(context, ones_, 1.0f);
  if (fp32() && !layout_.divides()) mains = Tensor(values);
  int64_t dense_value = 0, vector = vectors_;  // with dropped values, and with sharded gradients
  std::array<int64_t, kGradientGroups.size()> unquantized{};
  for (Parameter& parameter : parameters_) {
    const Bucket& bucket = buckets_[bucket_at(parameter.offset)];
    const int64_t count = parameter.shape.numel(), within = parameter.offset - bucket.begin;
    if (parameter.has_bytes) {
      const Tensor full = bytes_of(bucket);
      parameter.bytes = part(full, within, count).view(parameter.shape);
      if (parameter.columnwise_at > 0)
        parameter.columnwise_bytes = part(full, within + parameter.columnwise_at, count)
                                         .view({parameter.shape[1], parameter.shape[0]});
    } else if (gathers_bytes(bucket)) {
      int64_t& at = unquantized[static_cast<size_t>(parameter.group)];
      parameter.value = part(unquantized_parameters(parameter.group), at, count).view(parameter.shape);
      at += round_up(count, kGranule);
    } else if (parameter.has_value && flat_values()) {
      parameter.value = part(values_of(bucket), within, count).view(parameter.shape);
    } else if (parameter.has_value) {
      parameter.value = part(values, dense_value, count).view(parameter.shape);
      dense_value += round_up(count, kGranule);
    }
    if (!parameter.trainable) {
      if (fp32()) parameter.main = parameter.value;
      continue;
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
  for (const Bucket& bucket : buckets_)
    zeroed_granules_.push_back(bucket.trainable ? bucket.size() / kGranule : 0);
  for (const Parameter& parameter : parameters_)
    zeroed_granules_[bucket_at(parameter.offset)] -= granules_written(parameter);
  write_flags(context);
}

// A GEMM writes the parameter but not the gap after it, so the last granule is zeroed if it has a gap.
int64_t ParameterStore::granules_written(const Parameter& parameter) {
  return parameter.linear && parameter.trainable ? parameter.shape.numel() / kGranule : 0;
}

void ParameterStore::write_flags(const Context& context) const {
  std::vector<uint8_t> host;
  if (context.executes()) host = granule_flags();  // the planner traces thousands of layouts
  context.copy_to_device(flags, host.data());
  context.synchronize();  // the host vector must outlive the copy
}

std::vector<uint8_t> ParameterStore::granule_flags() const {
  std::vector<uint8_t> host(static_cast<size_t>(trained_size_ / kGranule), kernels::kGranuleZeroed);
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    const bool counted =
        (parameter.sharing == Sharing::sharded || layout_.tensor_rank == 0) && !parameter.copy;
    const int bits = (parameter.decay ? kernels::kGranuleDecays : 0) |
                     (counted ? kernels::kGranuleCounted : 0) |
                     parameter.update_group << kernels::kGranuleGroupShift;
    const int64_t written = granules_written(parameter);
    const auto first = host.begin() + parameter.offset / kGranule;
    std::fill_n(first, written, static_cast<uint8_t>(bits));
    std::fill_n(first + written, kernels::granules_of(parameter.shape.numel()) - written,
                static_cast<uint8_t>(bits | kernels::kGranuleZeroed));
  }
  return host;
}

// --- parts -------------------------------------------------------------------------------------------------

Tensor ParameterStore::part(const Tensor& flat, int64_t first, int64_t count) {
  TE_CHECK(first >= 0 && first + count <= flat.numel(), "elements {}+{} of {}", first, count,
           flat.shape.str());
  return {static_cast<char*>(flat.data) + static_cast<size_t>(first) * dtype_size(flat.dtype),
          flat.dtype,
          {count}};
}

size_t ParameterStore::bucket_at(int64_t flat) const {
  const auto found = std::ranges::upper_bound(buckets_, flat, {}, &Bucket::end);
  TE_CHECK(found != buckets_.end(), "element {} of {}", flat, flat_size_);
  return static_cast<size_t>(found - buckets_.begin());
}

Tensor ParameterStore::values_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(values, bucket.value, bucket.size());
  return part(region_of(bucket).value_slots.slice_rows(bucket.sharded % num_value_slots(bucket), 1), 0,
              bucket.size());
}

Tensor ParameterStore::bytes_of(const Bucket& bucket) const {
  if (!shards_values(bucket)) return part(bytes, bucket.bytes, bucket.size());
  return part(region_of(bucket).byte_slots.slice_rows(bucket.sharded % num_value_slots(bucket), 1), 0,
              bucket.size());
}

Tensor ParameterStore::grads_of(const Bucket& bucket) const {
  if (!shards_grads(bucket)) return part(grads, bucket.grad, bucket.size());
  return part(region_of(bucket).grad_slots.slice_rows(bucket.sharded % num_grad_slots(bucket), 1), 0,
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

std::vector<ParameterStore::ShardRange> ParameterStore::shard_ranges(const Parameter& parameter) const {
  if (parameter.dropped) return {{0, parameter.shape.numel(), shard_size_}};
  return own_ranges(parameter);
}

/// The parts of a parameter's flat range in this rank's segments.
std::vector<ParameterStore::ShardRange> ParameterStore::own_ranges(const Parameter& parameter) const {
  std::vector<ShardRange> result;
  for (const Segment& segment : segments_) {
    const int64_t from = std::max(parameter.offset, segment.begin);
    const int64_t to = std::min(parameter.end(), segment.begin + segment.count);
    if (from < to) {
      result.push_back({from - parameter.offset, to - from, segment.shard + from - segment.begin});
    }
  }
  return result;
}

MainParams ParameterStore::main_of(const Parameter& parameter, const ShardRange& range) const {
  if (!parameter.trainable) {
    const Tensor& value = parameter.dropped ? *parameter.written : parameter.value;
    const Tensor own = flat_values() && !parameter.dropped
                           ? own_values(parameter, range)
                           : part(value.view({value.numel()}), range.local, range.count);
    return fp32() ? MainParams{.fp32 = own} : MainParams{.value = own};
  }
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return main_at(segment, range.shard - segment.shard, range.count);
}

std::vector<Tensor> ParameterStore::kept_values(const Parameter& parameter) const {
  if (!shards_values(buckets_[bucket_at(parameter.offset)]) || is_unquantized(parameter))
    return {parameter.has_bytes ? parameter.bytes : parameter.value};
  std::vector<Tensor> result;
  for (const ShardRange& range : own_ranges(parameter))
    result.push_back(parameter.has_bytes ? own_bytes(parameter, range) : own_values(parameter, range));
  return result;
}

Tensor ParameterStore::own_values(const Parameter& parameter, const ShardRange& range) const {
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return part(values, segment.value + range.shard - segment.shard, range.count);
}

// For a bucket that gathers bytes.
Tensor ParameterStore::own_bytes(const Parameter& parameter, const ShardRange& range) const {
  const Segment& segment = segments_[bucket_at(parameter.offset)];
  return part(bytes, segment.bytes + range.shard - segment.shard, range.count);
}

std::vector<ParameterStore::Part> ParameterStore::shards_to_quantize(const Parameter& parameter) const {
  std::vector<Part> result;
  for (const ShardRange& range : shard_ranges(parameter)) {
    const Tensor& full = parameter.value;
    result.push_back({own_values(parameter, range),
                      parameter.has_bytes ? own_bytes(parameter, range)
                                          : part(full.view({full.numel()}), range.local, range.count)});
  }
  return result;
}

void ParameterStore::keep_codes(const Context& context, const Parameter& parameter) const {
  if (!parameter.dropped || !parameter.has_bytes) return;
  const Bucket& bucket = buckets_[bucket_at(parameter.offset)];
  const int64_t within = parameter.offset - bucket.begin;
  for (const ShardRange& range : own_ranges(parameter))
    context.copy(own_bytes(parameter, range), part(bytes_of(bucket), within + range.local, range.count));
}

std::vector<ParameterStore::Part> ParameterStore::unquantized_parts(GradientGroup group) const {
  std::vector<Part> result;
  for (const Parameter& parameter : parameters_) {
    if (parameter.group != group || !is_unquantized(parameter)) continue;
    for (const Part& part : shards_to_quantize(parameter)) result.push_back(part);
  }
  return result;
}

// --- gradients ---------------------------------------------------------------------------------------------

// In sharded buckets only vectors accumulate before they are reduced: GEMMs overwrite their slot, its gaps are zeroed
// with each reduction (comm/gradient_reducer.h), and the first sum of a segment is written.
void ParameterStore::reset_gradients(const Context& context) {
  for (Parameter& parameter : parameters_) parameter.grad_stale = parameter.linear && parameter.trainable;
  if (layout_.grad_slots == 0) {
    const int64_t zeroed = std::accumulate(zeroed_granules_.begin(), zeroed_granules_.end(), int64_t{0});
    return kernels::zero_granules(context, {.x = grads, .flags = flags, .count = zeroed});
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (shards_grads(bucket) || !bucket.trainable) continue;
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
  finish_loading(context);
}

void ParameterStore::initialize(const Context& context, uint64_t seed, const Parameter& parameter) const {
  for (const ShardRange& range : shard_ranges(parameter)) initialize(context, seed, parameter, range);
  if (!parameter.quantize_written) return;
  parameter.quantize_written(context);
  keep_codes(context, parameter);
}

void ParameterStore::initialize(const Context& context, uint64_t seed, const Parameter& parameter,
                                const ShardRange& range) const {
  const MainParams main = main_of(parameter, range);
  const ParameterShard& shard = parameter.shard;
  // 16-bit values are computed from FP32 values, which use the gradients' memory: it is not in use yet.
  const int64_t in_grads = static_cast<int64_t>(grads.bytes() / sizeof(float));
  const DeviceBuffer own(context, main.fp32 || in_grads >= kScratch ? 0 : kScratch * sizeof(float));
  const int64_t max_count = main.fp32 ? range.count : std::max(in_grads, kScratch);
  for (const ParameterShard::Extent& extent : shard.extents(range.local, range.local + range.count)) {
    for (int64_t at = 0; at < extent.count; at += max_count) {
      const int64_t count = std::min(max_count, extent.count - at);
      const MainParams target = main.part(extent.local - range.local + at, count);
      void* const scratch = own.bytes() > 0 ? own.data() : grads.data;
      const Tensor fp32 = target.fp32 ? target.fp32 : Tensor{scratch, DType::f32, {count}};
      if (parameter.init == Init::normal && parameter.std != 0.0f) {
        kernels::fill_normal(context, fp32, parameter.std, seed, stream_of(parameter.name),
                             {.local_cols = shard.cols,
                              .first_local = extent.in_range + at,
                              .global_row = extent.row,
                              .global_col = shard.first_col,
                              .global_cols = shard.global_cols()});
      } else {
        kernels::fill_value(context, fp32, parameter.init == Init::ones ? 1.0f : 0.0f);
      }
      if (target.remainder)
        kernels::split_params(context, {fp32, target.value, target.remainder});
      else if (target.value)
        kernels::cast(context, fp32, target.value);
    }
  }
}

void ParameterStore::finish_loading(const Context& context) {
  for (Parameter& parameter : parameters_)
    if (!parameter.quantize_written) ++parameter.value_version;
  cast_values(context);
}

void ParameterStore::cast_values(const Context& context) {
  if (fp32() || split()) return;
  if (!flat_values()) {
    for (const Parameter& parameter : parameters_)
      if (parameter.has_value && parameter.trainable) kernels::cast(context, parameter.main, parameter.value);
    return;
  }
  for (size_t i = 0; i < buckets_.size(); ++i)
    if (buckets_[i].trainable) kernels::cast(context, main_of(segments_[i]).fp32, value_of(segments_[i]));
}

}  // namespace te::parameters
