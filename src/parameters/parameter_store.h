// All parameters of this rank's part of the model, in flat buffers: values (weights in the model's dtype) and main
// gradients for all of them, FP32 master weights (parameters/main_params.h) for this data-parallel rank's shard. The
// optimizer, the reductions, the gradient norm and checkpoints can thus process a few large blocks.
//
// The flat buffers are divided into buckets at layer boundaries, and each bucket into equal segments, one per
// data-parallel rank (ZeRO-1, Rajbhandari et al., arXiv 1910.02054):
//
//   bucket 0               bucket 1                        a rank's master weights and moments:
//   | rank 0 | rank 1 |    | rank 0      | rank 1      |   | segment of bucket 0 | segment of bucket 1 |
// A bucket has parameters of one gradient group (GradientGroup), whose ranks divide it: the parameters of each group
// follow each other in the flat buffers, in the order in which they were added.
//
// Parameters that are not trained (ParameterSpec::trainable) come after all others, in buckets of their own. They have
// a value, which is divided and gathered like others if values are sharded, but no gradient, master weight or moments.
//
// A parameter on two pipeline stages (tied embedding) has its own bucket, so that both stages divide it alike: the same
// data-parallel ranks own the same elements, sum the same gradients and compute bitwise equal updates.
//
// If layers are sharded (StoreLayout::grad_slots, value_slots: ZeRO-2 and 3), a rank stores only its segments of their
// buckets: of gradients, or of gradients and values. Full buckets are held temporarily in slots, in the order of the
// layers, so that with two slots neighboring buckets use different ones:
//
//   bucket     0: embedding   1: layers   2: layers   3: layers   4: output layer
//   gradients  full           slot 0      slot 1      slot 0      full        and this rank's segment of each bucket
//
// If FP8 weights are gathered as bytes (StoreLayout::gather_quantized), a rank stores the values of only its own
// segments, which it quantizes, and the bytes of all. Other parameters of these buckets (norm weights, biases) are
// stored separately, with full values. With sharded values, only the bytes of its own segments are stored, and full
// buckets use slots like values.
//
// Weights that are held in FP8 only (StoreLayout::drop_base) are gathered likewise: each rank quantizes them once, in
// the slots, and stores its segments of the codes.
//
// Gradients of vectors (norm weights, biases) of sharded layers are computed at other times than those of the matrices,
// and are small: their sums over the microbatches are stored separately.
//
// Initial weights are a pure function of (seed, parameter name, index within the full parameter).
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "core/parameter_id.h"
#include "kernels/gemm/matrix.h"
#include "parameters/main_params.h"
#include "parameters/parameter_shard.h"

namespace te::parameters {

enum class Init : uint8_t { normal, zeros, ones };

/// How tensor-parallel ranks hold a parameter, and what gradient each of them computes.
enum class Sharing : uint8_t {
  sharded,     ///< each rank holds a different part
  replicated,  ///< all hold the same values and compute the same, complete gradient
  partial      ///< all hold the same values; gradients are partial (own tokens or heads) and must be summed
};

struct ParameterSpec {
  std::string name{};  ///< in files and messages; add() sets that of the identity if it is empty
  ParameterId id{};
  ParameterShard shard;
  Init init = Init::normal;
  float std = 0.0f;          ///< standard deviation for Init::normal
  bool decay = false;        ///< weight decay applies: to matrices, not to norm weights and biases
  uint8_t update_group = 0;  ///< index in AdamW::groups
  /// For a matrix of a transformer layer: the numbers of rows of the logical matrices that are stacked in the full
  /// parameter (q, k and v of linear_qkv; gate and up of linear_fc1). Tensor-parallel ranks divide the rows of each, or
  /// columns. Of experts: the matrices that this rank has.
  std::vector<int64_t> matrices{};
  Sharing sharing = Sharing::sharded;
  /// A second copy of a parameter that another pipeline stage owns (a tied embedding). The stages sum their gradients;
  /// only the owner counts it in the norm and saves it.
  bool copy = false;
  bool copied = false;  ///< on the owner: another stage holds a copy
  GradientGroup group = GradientGroup::dense;
  /// False: a constant value, without gradient, master weights and moments.
  bool trainable = true;
  /// Passes read only quantized copies and no value; StoreLayout::drop_values may then save the value's memory.
  bool quantized = false;
  /// Not trained, and passes read only layouts that are quantized once: StoreLayout::drop_base may save the value's
  /// memory.
  bool quantized_once = false;
  /// With quantized_once: the columnwise layout is not the transpose of the rowwise one.
  bool two_codes = false;

  bool tied() const { return copy || copied; }
};

struct Parameter : ParameterSpec {
  Shape shape;         ///< of this rank's part; weights are [out, in]
  int64_t offset = 0;  ///< elements, in the flat buffers; a multiple of the optimizer's granule

  /// Read by the passes, in the model's dtype. Empty with StoreLayout::drop_values. In a sharded bucket it points into
  /// a slot, and is valid after the gather.
  Tensor value;
  /// u8 [out, in], FP8: replaces the value if FP8 weights are gathered. Quantization writes this rank's shards
  /// (ParameterStore::shards_to_quantize); complete after the bucket has been gathered. In a sharded bucket it points
  /// into a slot.
  Tensor bytes;
  /// Likewise of a dropped value with two_codes, u8 [in, out]: the codes of the columnwise layout.
  Tensor columnwise_bytes;
  /// FP32 [out, in] if one data-parallel rank holds all of it; the memory of `value` in an FP32 model.
  Tensor main;
  /// Accumulated over the step's microbatches. For a linear in a sharded bucket it points into a slot, for one
  /// microbatch.
  Tensor grad;
  /// The weight of a linear: the first GEMM of a step overwrites grad instead of accumulating, so it is not zeroed
  /// before.
  bool linear = false;
  bool grad_stale = false;  ///< grad holds data of an earlier step until that GEMM runs
  bool has_value = true;    ///< valid after plan()
  bool dropped = false;     ///< StoreLayout::drop_base applies: there is never a value
  /// For a dropped value: temporary memory in which it is written, and the call that quantizes it then, on all
  /// tensor-parallel ranks.
  const Tensor* written = nullptr;
  std::function<void(const Context&)> quantize_written{};
  /// For a dropped value: its quantized layouts. The columnwise values are scratch unless they are kept.
  const kernels::Matrix *rowwise = nullptr, *columnwise = nullptr;
  bool keeps_columnwise = false;
  bool has_bytes = false;  ///< likewise
  /// Likewise: where the columnwise codes start in the flat range; 0: it has none.
  int64_t columnwise_at = 0;
  /// For values that are not trained: numbers of their last change and of the change for which FP8 layouts were made.
  int64_t value_version = 0, quantized_version = -1;
  /// With bytes: index among the weights that data-parallel ranks quantize together (fp8/sharded_weight_quantizer.h).
  int sharded_weight_index = -1;

  int64_t end() const { return offset + columnwise_at + shape.numel(); }
};

/// Elements [begin, end) of the flat buffers that are reduced and gathered in one collective.
struct Bucket {
  int64_t begin = 0, end = 0;
  GradientGroup group = GradientGroup::dense;
  bool trainable = true;
  bool dropped = false;  ///< of parameters without values (StoreLayout::drop_base)
  int sharded = -1;      ///< index in its region; -1: values and gradients are full on every rank
  int chunk = 0;         ///< layers of a chunk are consecutive in every pass
  int64_t value = 0;     ///< first element in `values`, if not sharded
  int64_t grad = 0;      ///< likewise in `grads`
  int64_t bytes = -1;    ///< likewise in `bytes`; -1: values are gathered
  int64_t size() const { return end - begin; }
  /// Buckets of one region have the same group and are all trained, dropped or neither; regions follow each other.
  int region() const {
    return static_cast<int>(group) + (trainable ? 0
                                      : dropped ? 2
                                                : 1) *
                                         static_cast<int>(kGradientGroups.size());
  }
};

/// The part of a bucket that belongs to a rank of its group.
struct Segment {
  int64_t begin = 0;  ///< in the flat buffers
  int64_t count = 0;
  int64_t shard = 0;   ///< first element in buffers of shard_size(); at their end if not trained
  int64_t value = 0;   ///< likewise in `values`
  int64_t grad = 0;    ///< likewise in `grads`
  int64_t bytes = -1;  ///< likewise in `bytes`, or -1
};

/// This rank among those that divide a gradient group's buckets; one rank for a group without parameters.
struct ShardRank {
  int rank = 0, size = 1;
};
using ShardRanks = std::array<ShardRank, kGradientGroups.size()>;  ///< by GradientGroup

/// How data-parallel ranks communicate gradients and values. Other values are for tests, and give the same bits.
struct DataParallelOptions {
  bool overlap_grad_reduce = true;   ///< reduce a bucket as soon as the backward pass has completed it
  bool overlap_param_gather = true;  ///< gather updated weights during the next forward pass
  bool fp8_param_gather = true;      ///< gather FP8 weights instead of BF16, if config::gathers_fp8_weights()
};

struct StoreLayout {
  DType dtype = DType::bf16;      ///< of the values
  DType grad_dtype = DType::f32;  ///< of the main gradients
  ShardRanks ranks{};
  int tensor_rank = 0;
  int64_t bucket_size = 1;  ///< minimum, in elements
  bool training = true;     ///< false: only values, for generation and evaluation
  bool split = false;       ///< FP32 master weights are BF16 values and remainders
  /// Quantized parameters have FP32 master weights and no values. Only in training, not divided, not split.
  bool drop_values = false;
  /// Parameters with quantized_once have no values. Every rank quantizes all of its part of them, and keeps its
  /// segments of the codes if values are sharded, else all.
  bool drop_base = false;
  /// Quantized parameters are gathered as bytes, in buckets where that is smaller. Only in training, with 16-bit
  /// values; no effect on buckets that are not divided.
  bool gather_quantized = false;
  /// FP32 master weights with separate memory are in host memory. Not with drop_values, where passes read them.
  bool offload_mains = false;
  /// Slots per region for full buckets of layers whose gradients or values are sharded; 0: not sharded. Only in
  /// training with divided buckets; values only together with gradients.
  int grad_slots = 0, value_slots = 0;
  DataParallelOptions data_parallel{};

  const ShardRank& of(GradientGroup group) const { return ranks[static_cast<size_t>(group)]; }
  /// True if a group has several ranks.
  bool divides() const {
    return std::ranges::any_of(ranks, [](const ShardRank& own) { return own.size > 1; });
  }
};

class ParameterStore {
 public:
  /// Registers a parameter; the address stays valid. Only before plan().
  Parameter* add(ParameterSpec spec);
  /// Parameters that are added later are trained only if `trains` is true for them. Empty: as their specs say.
  /// `has_base`: checkpoints name the weights that the other values come from instead of holding them.
  void train_only(std::function<bool(const ParameterId&)> trains, bool has_base = false) {
    trains_ = std::move(trains);
    has_base_ = has_base;
  }
  /// True if checkpoints hold the parameter.
  bool saves(const Parameter& parameter) const { return parameter.trainable || !has_base_; }
  /// Ends a layer; a bucket may end here. `shardable`: passes use the layer without interruption by other layers.
  void end_layer(bool shardable = false) { layer_ends_.push_back({parameters_.size(), shardable, chunk_}); }
  /// Later layers are used by other passes than earlier ones.
  void end_chunk() { ++chunk_; }

  void plan(MemoryPlan& plan, const StoreLayout& layout);
  /// After the plan's memory is allocated: points every parameter into the flat buffers and writes the granules' flags.
  void bind(const Context& context);
  /// Initializes the FP32 master weights of this rank's segments and their values. With several data-parallel ranks a
  /// gather of every bucket's values follows (comm/parameter_gatherer.h).
  void initialize(const Context& context, uint64_t seed);
  /// Initializes the master weights of one parameter.
  void initialize(const Context& context, uint64_t seed, const Parameter& parameter) const;
  /// After this rank's master weights, and values that are not trained, were loaded: cast_values(), and FP8 layouts are
  /// outdated. A gather follows.
  void finish_loading(const Context& context);
  /// values = FP32 master weights rounded to the model's dtype, in this rank's segments.
  void cast_values(const Context& context);

  /// Starts a step: gradients of linears become stale, all others zero.
  void reset_gradients(const Context& context);
  /// Marks sharded gradients of the linears in [begin, end) stale: GEMMs are about to overwrite them.
  void mark_linear_grads_stale(int64_t begin, int64_t end);
  /// InternalError for a parameter of [begin, end) whose gradient is stale. Call before that range is read.
  void check_gradients(int64_t begin, int64_t end) const;

  /// Requests ones() of at least `count` elements; before plan().
  void need_ones(int64_t count) { num_ones_ = std::max(num_ones_, count); }
  /// Ones in the dtype of the values, for norms without a gain; after bind() or use_ones_of().
  Tensor ones(int64_t count) const { return part(ones_, 0, count); }
  void use_ones_of(const ParameterStore& other) { ones_ = other.ones_; }

  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  int64_t num_parameters() const { return count_; }       ///< of this rank, without alignment gaps
  int64_t flat_size() const { return flat_size_; }        ///< elements of the flat buffers
  int64_t trained_size() const { return trained_size_; }  ///< the first elements, those that are trained
  int64_t shard_size() const { return shard_size_; }

  const StoreLayout& layout() const { return layout_; }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Indices of the buckets in the order in which a forward pass completes its use of them. All ranks communicate
  /// buckets in this order, or in reverse.
  const std::vector<size_t>& pass_order() const { return pass_order_; }
  const std::vector<Segment>& segments() const { return segments_; }  ///< of this rank, one per bucket
  MainParams main_of(const Segment& segment) const;
  /// Whether values have the layout of master weights and gradients; false with StoreLayout::drop_values.
  bool flat_values() const { return !layout_.drop_values; }
  Tensor value_of(const Segment& segment) const { return part(values, segment.value, segment.count); }
  Tensor grad_of(const Segment& segment) const { return part(grads, segment.grad, segment.count); }
  /// Gradients of elements [begin, end) of the flat buffers, all in one segment of this rank.
  Tensor grad_of(int64_t begin, int64_t end) const;
  Tensor flags_of(const Segment& segment) const;
  /// Full buckets; for a sharded one the memory of its slot.
  Tensor values_of(const Bucket& bucket) const;
  Tensor grads_of(const Bucket& bucket) const;
  /// Index of the bucket that holds a flat element.
  size_t bucket_at(int64_t flat) const;
  bool shards_grads(const Bucket& bucket) const {
    return bucket.trainable && bucket.sharded >= 0 && layout_.grad_slots > 0;
  }
  bool shards_values(const Bucket& bucket) const { return bucket.sharded >= 0 && layout_.value_slots > 0; }
  /// Number of the region's sharded buckets that are full at once, in values or bytes: bucket.sharded modulo this is
  /// the bucket's slot; and in gradients.
  int num_value_slots(const Bucket& bucket) const {
    return std::min(layout_.value_slots, region_of(bucket).num_sharded);
  }
  int num_grad_slots(const Bucket& bucket) const {
    return std::min(layout_.grad_slots, region_of(bucket).num_sharded);
  }
  /// For a bucket whose FP8 weights are gathered as bytes, u8: the full bucket (the memory of its slot if sharded), and
  /// this rank's segment.
  bool gathers_bytes(const Bucket& bucket) const { return bucket.bytes >= 0; }
  Tensor bytes_of(const Bucket& bucket) const;
  Tensor bytes_of(const Segment& segment) const { return part(bytes, segment.bytes, segment.count); }
  /// Values of all unquantized parameters of the group's such buckets, with zeros between them.
  Tensor unquantized_parameters(GradientGroup group) const {
    const auto& [first, count] = unquantized_[static_cast<size_t>(group)];
    return part(values, first, count);
  }
  bool fp32() const { return layout_.dtype == DType::f32; }  ///< the values are the master weights
  bool split() const {
    return layout_.split && !fp32();
  }  ///< the values are the master weights' upper halves

  /// The flat ranges of parameters [first, end), by index: one per region that has parameters among them.
  std::vector<Bucket> ranges(size_t first, size_t end) const;
  /// Elements [first, first + count) of a flat tensor.
  static Tensor part(const Tensor& flat, int64_t first, int64_t count);

  /// A part of a parameter in this rank's shard: flat elements [local, local + count) are elements [shard, shard +
  /// count) of buffers of shard_size().
  struct ShardRange {
    int64_t local = 0, count = 0, shard = 0;
  };
  /// All of a dropped parameter.
  std::vector<ShardRange> shard_ranges(const Parameter& parameter) const;
  MainParams main_of(const Parameter& parameter, const ShardRange& range) const;
  /// This rank's part of a parameter in a bucket that gathers bytes: its values, and their destination (the bytes of a
  /// quantized parameter, the full value of another one).
  struct Part {
    Tensor value, target;
  };
  std::vector<Part> shards_to_quantize(const Parameter& parameter) const;
  /// Stores this rank's segments of the codes of a dropped parameter, which have been written to the slot. Nothing if
  /// values are not sharded.
  void keep_codes(const Context& context, const Parameter& parameter) const;
  /// The parts of all parameters in unquantized_parameters().
  std::vector<Part> unquantized_parts(GradientGroup group) const;
  /// True if FP8 layouts of the parameter's value must be made: it is trained, or has changed since they were.
  static bool needs_quantization(const Parameter& parameter) {
    return parameter.trainable || parameter.quantized_version != parameter.value_version;
  }
  /// The values that this rank stores between passes: all, or the bytes; if sharded, this rank's ranges.
  std::vector<Tensor> kept_values(const Parameter& parameter) const;

  PlannedTensor values;  ///< [flat_size]; less with dropped or sharded values
  /// [shard_size] fp32, or u16 remainders with split(). In an FP32 model: the values with one data-parallel rank, else
  /// empty.
  PlannedTensor mains;
  PlannedTensor bytes;  ///< u8: buckets that gather bytes; of sharded ones this rank's segments
  PlannedTensor grads;  ///< [trained_size]; less with sharded gradients
  PlannedTensor flags;  ///< u8 [trained_size / granule], see kernels/common/granule.h

 private:
  struct LayerEnd {
    size_t parameter;  ///< index of the first parameter after it
    bool shardable;
    int chunk;
  };
  /// What the sharded buckets of a region share.
  struct Region {
    /// [slots, elements of the largest sharded bucket that uses them], or empty.
    PlannedTensor value_slots, byte_slots, grad_slots;
    int num_sharded = 0;
    int64_t largest_sharded = 0;  ///< elements of the largest sharded bucket
    /// Likewise, of buckets that gather values, and bytes.
    int64_t largest_of_values = 0, largest_of_bytes = 0;
  };
  Region& region_of(const Bucket& bucket) { return regions_[static_cast<size_t>(bucket.region())]; }
  const Region& region_of(const Bucket& bucket) const {
    return regions_[static_cast<size_t>(bucket.region())];
  }
  void plan_slots(MemoryPlan& plan, const Bucket& of_region);
  static int64_t granules_written(const Parameter& parameter);
  void write_flags(const Context& context) const;
  std::vector<uint8_t> granule_flags() const;
  void lay_out(const Bucket& of_region);
  std::vector<LayerEnd>::const_iterator layer_of(size_t parameter) const;
  bool ends_bucket(size_t parameter, size_t next, int64_t elements) const;
  void end_bucket(Bucket bucket, size_t last);
  int64_t lay_out_values();
  int64_t lay_out_bytes();
  void lay_out_slots();
  bool sends_fewer_bytes(const Bucket& bucket) const;
  bool is_unquantized(const Parameter& parameter) const;
  /// The ranks that divide a bucket or region.
  ShardRank ranks_of(const Bucket& bucket) const {
    return bucket.dropped && layout_.value_slots == 0 ? ShardRank{} : layout_.of(bucket.group);
  }
  std::vector<ShardRange> own_ranges(const Parameter& parameter) const;
  Tensor own_values(const Parameter& parameter, const ShardRange& range) const;
  Tensor own_bytes(const Parameter& parameter, const ShardRange& range) const;
  int64_t lay_out_grads();
  void initialize(const Context&, uint64_t seed, const Parameter&, const ShardRange&) const;
  MainParams main_at(const Segment& segment, int64_t within, int64_t count) const;

  StoreLayout layout_;
  std::function<bool(const ParameterId&)> trains_;
  bool has_base_ = false;
  std::deque<Parameter> parameters_;
  std::vector<LayerEnd> layer_ends_;
  int chunk_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Segment> segments_;
  int64_t count_ = 0;
  int64_t flat_size_ = 0;
  int64_t shard_size_ = 0;
  int64_t trained_size_ = 0;  ///< elements of the regions that are trained, which come first
  std::array<Region, 3 * kGradientGroups.size()> regions_;
  /// unquantized_parameters(): position in `values`, and elements.
  std::array<std::pair<int64_t, int64_t>, kGradientGroups.size()> unquantized_{};
  /// Gradients of sharded layers' vectors: position in `grads`, and elements.
  int64_t vectors_ = 0, vector_size_ = 0;
  std::vector<size_t> bucket_ends_;  ///< per bucket: index of its last parameter
  std::vector<size_t> pass_order_;
  std::vector<int64_t> zeroed_granules_;  ///< per bucket: number of granules with kGranuleZeroed
  int64_t num_ones_ = 0;
  PlannedTensor planned_ones_;
  Tensor ones_;  ///< planned_ones_, or another store's
};

}  // namespace te::parameters
