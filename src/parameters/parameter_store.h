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
// Initial weights are a pure function of (seed, parameter name, index within the whole parameter).
#pragma once

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

  Tensor value;  ///< what the passes read; the model's dtype. Empty where StoreLayout::drop_values saves it
  Tensor
      main;  ///< FP32, where one data rank holds all of it whole; the same memory as value in an FP32 model
  Tensor grad;  ///< accumulated over the step's microbatches
  /// A linear's weight: the first GEMM of a step writes grad instead of adding to it, so nobody zeroes it before.
  bool linear = false;
  bool grad_stale = false;  ///< that GEMM is still to come: grad holds what an earlier step left
  bool has_value = true;    ///< after plan()

  int64_t end() const { return offset + shape.numel(); }
};

/// Elements [begin, end) of the flat buffers, such as what is reduced and gathered at once.
struct Bucket {
  int64_t begin = 0, end = 0;
};

/// A data rank's part of a bucket.
struct Segment {
  int64_t begin = 0;  ///< in the flat buffers
  int64_t count = 0;
  int64_t shard = 0;  ///< its first element in buffers of shard_size()
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
};

class ParameterStore {
 public:
  /// Registers a parameter; the address stays valid. Only before plan().
  Parameter* add(ParameterSpec spec);
  /// A layer is complete: a bucket may end here.
  void end_layer() { layer_ends_.push_back(parameters_.size()); }

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
  Tensor value_of(const Segment& segment) const { return part(values, segment.begin, segment.count); }
  Tensor grad_of(const Segment& segment) const { return part(grads, segment.begin, segment.count); }
  Tensor flags_of(const Segment& segment) const;
  Tensor values_of(const Bucket& bucket) const {
    return part(values, bucket.begin, bucket.end - bucket.begin);
  }
  Tensor grads_of(const Bucket& bucket) const { return part(grads, bucket.begin, bucket.end - bucket.begin); }
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

  Tensor values;  ///< [flat_size], or those of the parameters that have one
  /// [shard_size] fp32, or u16 where split(): remainders; in an FP32 model the values, if one data rank holds all, else
  /// empty.
  Tensor mains;
  Tensor grads;  ///< [flat_size]
  Tensor flags;  ///< u8 [flat_size / granule], see kernels/common/granule.h

 private:
  void lay_out();
  int64_t lay_out_values();
  void initialize(const Context&, uint64_t seed, const Parameter&, const Piece&) const;
  MainParams main_at(int64_t flat, int64_t shard, int64_t count) const;

  StoreLayout layout_;
  std::deque<Parameter> parameters_;
  std::vector<size_t> layer_ends_;  ///< numbers of parameters
  std::vector<Bucket> buckets_;
  std::vector<Segment> segments_;
  int64_t count_ = 0;
  int64_t flat_size_ = 0;
  int64_t shard_size_ = 0;
  int64_t zeroed_granules_ = 0;  ///< how many have kGranuleZeroed
};

}  // namespace te::parameters
