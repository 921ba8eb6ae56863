// All parameters of this rank's part of the model, in flat buffers: values (the model's dtype) and main gradients for
// all of them, main parameters (parameters/main_params.h) for this data rank's share, so that the optimizer, the
// reductions, the gradient norm and a checkpoint each walk a few long runs of memory.
//
// The flat buffers are cut into buckets at layer boundaries; each bucket is cut into equal segments, one per data rank
// (ZeRO-1, Rajbhandari et al., arXiv 1910.02054):
//
//   bucket 0               bucket 1                        a rank's main parameters and moments:
//   | rank 0 | rank 1 |    | rank 0      | rank 1      |   | segment of bucket 0 | segment of bucket 1 |
// A parameter that two pipeline stages hold has a bucket of its own, so that both cut it alike: the same data ranks own
// the same elements of it, add up the same gradients and make the same bits of it.
//
// Where layers are sharded (StoreLayout::grad_slots, value_slots: ZeRO-2 and 3), a rank keeps its segments of their
// buckets alone: of gradients, or of gradients and values. Whole buckets of them pass through slots, bucket after
// bucket, in the order of the layers, so that neighbours are never in the same slot where there are two:
//
//   bucket     0: embedding   1: layers   2: layers   3: layers   4: head
//   gradients  whole          slot 0      slot 1      slot 0      whole       and of each bucket this rank's segment
//
// Where quantized weights travel as bytes (StoreLayout::gather_quantized), a rank keeps the values of its segments of
// their buckets alone, which it casts, and the bytes of all. What else these buckets hold (gains, biases) has whole
// values of its own. With sharded values it keeps the bytes of its segments, too, and those of whole buckets pass
// through slots as values do.
//
// The gradients of vectors (gains, biases) of these layers are found at other times than those of their matrices and
// are small: this rank's sums over the microbatches have memory of their own.
//
// Initial weights are a pure function of (seed, parameter name, index within the whole parameter).
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/memory_plan.h"
#include "parameters/main_params.h"
#include "parameters/parameter_shard.h"

namespace te::parameters {

enum class Init : uint8_t { normal, zeros, ones };

/// How the tensor ranks share a parameter, and what each of them finds in the backward pass.
enum class Sharing : uint8_t {
  sharded,     ///< each rank holds a part of its own
  replicated,  ///< all hold the same values and find the same, complete gradient
  partial  ///< all hold the same values; each finds its own tokens' or heads' part of the gradient, to be summed
};

struct ParameterSpec {
  std::string name;  ///< "layers.0.mlp.linear_fc1.weight"
  ParameterShard shard;
  Init init = Init::normal;
  float std = 0.0f;    ///< of Init::normal
  bool decay = false;  ///< weight decay applies: matrices yes, gains and biases no
  /// Of a matrix of a transformer layer: the rows of the logical matrices that the whole parameter holds one below
  /// another (q, k and v of linear_qkv; gate and up of linear_fc1). Tensor ranks share the rows of each, or columns.
  std::vector<int64_t> matrices{};
  Sharing sharing = Sharing::sharded;
  /// A second copy of a parameter that another pipeline stage owns (a tied embedding): the stages sum their gradients,
  /// the owner alone counts it in the norm and saves it.
  bool copy = false;
  bool copied = false;  ///< on the owner: another stage holds a copy
  /// Passes read forms that somebody else makes of it, and no value: StoreLayout::drop_values may save that.
  bool quantized = false;

  bool tied() const { return copy || copied; }
};

struct Parameter : ParameterSpec {
  Shape shape;         ///< of this rank's part; weights are [out, in]
  int64_t offset = 0;  ///< elements, in the flat buffers; a multiple of the optimizer's granule

  /// What the passes read; the model's dtype. Empty where StoreLayout::drop_values saves it. In a sharded bucket memory
  /// of a slot, which holds it when it has been gathered.
  Tensor value;
  /// u8 [out, in], 8-bit floats: in place of the value where quantized weights travel. Whoever casts writes this rank's
  /// parts (ParameterStore::parts_to_cast); all is there when the bucket has been gathered. In a sharded bucket memory
  /// of a slot.
  Tensor bytes;
  Tensor
      main;  ///< FP32, where one data rank holds all of it whole; the same memory as value in an FP32 model
  /// Accumulated over the step's microbatches. Of a linear in a sharded bucket memory of a slot: of one microbatch.
  Tensor grad;
  /// A linear's weight: the first GEMM of a step writes grad instead of adding to it, so nobody zeroes it before.
  bool linear = false;
  bool grad_stale = false;  ///< that GEMM is still to come: grad holds what an earlier step left
  bool has_value = true;    ///< after plan()
  bool has_bytes = false;   ///< the same
  /// With bytes: its number among the weights that the data ranks cast together (fp8/sharded_weight_quantizer.h).
  int sharded_weight_index = -1;

  int64_t end() const { return offset + shape.numel(); }
};

/// Elements [begin, end) of the flat buffers, such as what is reduced and gathered at once.
struct Bucket {
  int64_t begin = 0, end = 0;
  int sharded =
      -1;         ///< its number among the sharded ones; -1: its values and gradients are whole on every rank
  int chunk = 0;  ///< layers of one chunk follow one another in every pass
  int64_t value = 0;   ///< of a whole one: its first element in the buffer of values
  int64_t grad = 0;    ///< and of gradients
  int64_t bytes = -1;  ///< and of bytes; -1: values travel
  int64_t size() const { return end - begin; }
};

/// A data rank's part of a bucket.
struct Segment {
  int64_t begin = 0;  ///< in the flat buffers
  int64_t count = 0;
  int64_t shard = 0;   ///< its first element in buffers of shard_size()
  int64_t value = 0;   ///< and in that of values
  int64_t grad = 0;    ///< and of gradients
  int64_t bytes = -1;  ///< and of bytes, or -1
};

struct StoreLayout {
  DType dtype = DType::bf16;      ///< of the values
  DType grad_dtype = DType::f32;  ///< of the main gradients
  int data_rank = 0, data_size = 1;
  int tensor_rank = 0;
  int64_t bucket_size = 1;  ///< elements, at least
  bool training = true;     ///< false: values alone, for generation and evaluation
  bool split = false;       ///< main parameters are BF16 values and remainders
  /// Quantized parameters have FP32 main parameters and no values. Only in training, with one data rank, and not split.
  bool drop_values = false;
  /// Quantized parameters travel as bytes, in buckets of which that is the smaller message. Only in training, with
  /// 16-bit values; without effect on one data rank.
  bool gather_quantized = false;
  /// Main parameters in memory of their own are host memory. Not with drop_values: passes read them then.
  bool offload_mains = false;
  /// Slots for whole buckets of layers, whose gradients or values are then sharded; 0: they are whole. Only in training
  /// with several data ranks; values with gradients only.
  int grad_slots = 0, value_slots = 0;
};

class ParameterStore {
 public:
  /// Registers a parameter; the address stays valid. Only before plan().
  Parameter* add(ParameterSpec spec);
  /// A layer is complete: a bucket may end here. `shardable`: passes use it and leave it before they come to others.
  void end_layer(bool shardable = false) { layer_ends_.push_back({parameters_.size(), shardable, chunk_}); }
  /// The layers from here on are used by other passes than those before.
  void end_chunk() { ++chunk_; }

  void plan(MemoryPlan& plan, const StoreLayout& layout);
  /// After the plan's allocation: points every parameter into the flat buffers and writes the granules' flags.
  void bind(const Context& context);
  /// Main parameters of this rank's segments. Then, and after main parameters were loaded: cast_values(), and with
  /// several data ranks a gather of every bucket's values (comm/parameter_gatherer.h).
  void initialize(const Context& context, uint64_t seed);
  /// The same of one parameter.
  void initialize(const Context& context, uint64_t seed, const Parameter& parameter) const;
  /// values = main parameters rounded to the model's dtype, in this rank's segments.
  void cast_values(const Context& context);

  /// A step begins: no gradient holds anything. Those of linears become stale, all others zero.
  void reset_gradients(const Context& context);
  /// GEMMs are about to write the gradients of the linears in [begin, end) anew, where these are sharded.
  void mark_linear_grads_stale(int64_t begin, int64_t end);
  /// InternalError for a parameter of [begin, end) whose gradient is stale. Before anybody reads that range.
  void check_gradients(int64_t begin, int64_t end) const;

  std::deque<Parameter>& parameters() { return parameters_; }
  const std::deque<Parameter>& parameters() const { return parameters_; }
  int64_t num_parameters() const { return count_; }  ///< of this rank, without alignment gaps
  int64_t flat_size() const { return flat_size_; }   ///< elements of the flat buffers
  int64_t shard_size() const { return shard_size_; }

  const StoreLayout& layout() const { return layout_; }

  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Segment>& segments() const { return segments_; }  ///< of this rank, one per bucket
  MainParams main_of(const Segment& segment) const;
  /// Values lie as main parameters and gradients do; false with StoreLayout::drop_values.
  bool flat_values() const { return !layout_.drop_values; }
  Tensor value_of(const Segment& segment) const { return part(values, segment.value, segment.count); }
  Tensor grad_of(const Segment& segment) const { return part(grads, segment.grad, segment.count); }
  /// Of elements [begin, end) of the flat buffers, all in one segment of this rank.
  Tensor grad_of(int64_t begin, int64_t end) const;
  Tensor flags_of(const Segment& segment) const;
  /// Whole buckets; of a sharded one the memory of its slot.
  Tensor values_of(const Bucket& bucket) const;
  Tensor grads_of(const Bucket& bucket) const;
  /// The number of the bucket that holds a flat element.
  size_t bucket_at(int64_t flat) const;
  bool shards_grads(const Bucket& bucket) const { return bucket.sharded >= 0 && layout_.grad_slots > 0; }
  bool shards_values(const Bucket& bucket) const { return bucket.sharded >= 0 && layout_.value_slots > 0; }
  /// How many sharded buckets are whole at once, in values or in bytes: bucket.sharded modulo this is a bucket's slot.
  int num_value_slots() const { return std::min(layout_.value_slots, num_sharded_); }
  /// Of a bucket whose quantized weights travel as bytes: whole, of a sharded one the memory of its slot; and this
  /// rank's segment of it. u8.
  bool gathers_bytes(const Bucket& bucket) const { return bucket.bytes >= 0; }
  Tensor bytes_of(const Bucket& bucket) const;
  Tensor bytes_of(const Segment& segment) const { return part(bytes, segment.bytes, segment.count); }
  /// Of such buckets: the values of all that is not quantized, one after another, zero between them.
  Tensor unquantized_parameters() const { return part(values, unquantized_, unquantized_size_); }
  bool fp32() const { return layout_.dtype == DType::f32; }  ///< the values are the main parameters
  bool split() const { return layout_.split && !fp32(); }    ///< the values are their upper halves

  /// The flat range of parameters [first, end), by number, with the gap behind it.
  Bucket range(size_t first, size_t end) const;
  /// Elements [first, first + count) of a flat tensor.
  static Tensor part(const Tensor& flat, int64_t first, int64_t count);

  /// What this rank's shard holds of a parameter: elements [local, local + count) of its flat form are elements
  /// [shard, shard + count) of buffers of shard_size().
  struct Piece {
    int64_t local = 0, count = 0, shard = 0;
  };
  std::vector<Piece> pieces(const Parameter& parameter) const;
  MainParams main_of(const Parameter& parameter, const Piece& piece) const;
  /// This rank's part of a parameter in a bucket that gathers bytes: its values, and where they go: the bytes of a
  /// quantized one, the whole value of another.
  struct Part {
    Tensor value, target;
  };
  std::vector<Part> parts_to_cast(const Parameter& parameter) const;
  /// Of all parameters in unquantized_parameters().
  std::vector<Part> unquantized_parts() const;
  /// What this rank holds of its values between passes: all, or the bytes; where they are sharded, this rank's pieces.
  std::vector<Tensor> kept_values(const Parameter& parameter) const;

  Tensor values;  ///< [flat_size], or those of the parameters that have one, or what is not in slots
  /// [shard_size] fp32, or u16 where split(): remainders; in an FP32 model the values, if one data rank holds all, else
  /// empty.
  Tensor mains;
  Tensor bytes;  ///< u8: of the buckets that gather them; of sharded ones this rank's segments
  Tensor grads;  ///< [flat_size], or what is not in slots
  /// [slots, elements of the largest sharded bucket], of values and bytes: of those that travel so; or empty
  Tensor value_slots, byte_slots, grad_slots;
  Tensor flags;  ///< u8 [flat_size / granule], see kernels/common/granule.h

 private:
  struct LayerEnd {
    size_t parameter;  ///< number of the first one behind it
    bool shardable;
    int chunk;
  };
  static int64_t granules_written(const Parameter& parameter);
  void write_flags(const Context& context) const;
  void lay_out();
  bool ends_bucket(size_t parameter, int64_t elements, std::vector<LayerEnd>::const_iterator layer) const;
  void end_bucket(int64_t begin, int64_t end, const LayerEnd& layer);
  int64_t lay_out_values();
  int64_t lay_out_bytes();
  void lay_out_slots();
  bool sends_fewer_bytes(const Bucket& bucket) const;
  bool is_unquantized(const Parameter& parameter) const;
  Tensor own_values(const Parameter& parameter, const Piece& piece) const;
  Tensor own_bytes(const Parameter& parameter, const Piece& piece) const;
  int64_t lay_out_grads();
  void initialize(const Context&, uint64_t seed, const Parameter&, const Piece&) const;
  MainParams main_at(const Segment& segment, int64_t within, int64_t count) const;

  StoreLayout layout_;
  std::deque<Parameter> parameters_;
  std::vector<LayerEnd> layer_ends_;
  int chunk_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Segment> segments_;
  int64_t count_ = 0;
  int64_t flat_size_ = 0;
  int64_t shard_size_ = 0;
  int num_sharded_ = 0;
  int64_t largest_sharded_ = 0;                           ///< elements of the largest sharded bucket
  int64_t largest_of_values_ = 0, largest_of_bytes_ = 0;  ///< and of those that gather values, and bytes
  int64_t vectors_ = 0,
          vector_size_ = 0;  ///< gradients of sharded layers' vectors: where in `grads`, and elements
  int64_t unquantized_ = 0,
          unquantized_size_ = 0;          ///< unquantized_parameters(): where in `values`, and elements
  std::vector<int64_t> zeroed_granules_;  ///< of each bucket: how many have kGranuleZeroed
};

}  // namespace te::parameters
