// A model that continues sequences: runs the layers of training forward on new tokens only, with attention to a KV
// cache of earlier tokens. It has weights, cache and the activations of one pass, but no gradients.
//
// A pass processes any number of tokens of any sequences (a prompt, parts of several prompts, one token of each
// sequence); more than max_rows tokens are divided into several passes. Tensor-parallel ranks have shards of weights
// and cache, pipeline-parallel ranks the layers of their stage; all make the same calls and get the same logits. A pass
// runs through the stages in order, and the last stage sends the result to the others.
//
// FP8 GEMMs need multiples of 16 rows, except for the few-row kernels of a GPU (kernels/gemm/gemm.h): passes are padded
// with copies of the last row, which do not change scales. Tensorwise scales depend on all rows of a pass, so results
// depend on the other sequences in it.
//
// Passes with one token per sequence are captured as CUDA graphs, because launching their many short kernels one by one
// would limit the speed.
//
// Evaluation needs the probabilities of given tokens instead of logits: score() keeps the logits on the device, and
// truncate() allows several continuations of the same text to reuse its keys and values.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "config/config.h"
#include "core/device_graph.h"
#include "core/memory_plan.h"
#include "generate/cached_attention.h"
#include "generate/persistent_decoder.h"
#include "model/stack.h"

namespace te::generate {

/// Which of the passes with one token per sequence use persistent_decoder.h, if supported.
enum class MegakernelMode : uint8_t {
  never,
  where_faster,  ///< by measurements on an H200 (docs/log/decoding.md): one row, with FP8 weights up to four
  always
};

struct DecoderSizes {
  int64_t batch = 1;       ///< sequences in the cache
  int64_t max_rows = 512;  ///< maximum number of tokens of a pass, a multiple of 16
  /// Capacity of the cache in tokens, for resize_cache(); 0: `batch` sequences of seq_length.
  int64_t cache_tokens = 0;
  int64_t score_rows =
      0;  ///< for score(): rows whose logits are computed at a time, a power of 2 up to max_rows
  MegakernelMode megakernel = MegakernelMode::never;
};

/// Tokens to append to a sequence.
struct Continuation {
  int64_t sequence = 0;
  std::span<const int32_t> tokens;
};

/// The same with targets: the tokens that follow each of the last targets.size() tokens (0 to tokens.size()).
struct ScoredContinuation {
  int64_t sequence = 0;
  std::span<const int32_t> tokens, targets;
};

/// The model's score of a target.
struct TokenScore {
  double log_probability = 0.0;  ///< natural logarithm
  bool is_argmax = false;        ///< no token has a larger logit, and no preceding one an equal logit
};

class Decoder {
 public:
  /// config.model.seq_length is the maximum sequence length; precision, model, parallel.tensor and pipeline have the
  /// same meaning as in training, except that tensorwise replaces the delayed recipe. The groups must outlive the
  /// decoder.
  Decoder(const config::Config& config, const parallel::Groups& groups, const DecoderSizes& sizes,
          const model::FeedForwardFactory& make_feed_forward = model::make_feed_forward);
  Decoder(const Decoder&) = delete;

  /// `own_weights` false: the decoder reads the weights of another model on the same device.
  void plan(MemoryPlan& plan, const Context& context, bool own_weights = true);
  void bind(const Context& context);
  /// The same without own weights: `weights` must be of the same model and the same number of tensor-parallel ranks and
  /// must outlive the decoder. They may change between two calls. Not with FP8, whose quantized weights would be
  /// outdated.
  void bind(const Context& context, const parameters::ParameterStore& weights);
  parameters::ParameterStore& parameters() { return stack_.parameters; }
  /// Quantizes the weights of FP8 layers; call it after loading the weights.
  void quantize_weights(const Context& context);

  /// Appends tokens to their sequences; each sequence may occur once, and no continuation may be empty. Returns the
  /// FP32 logits [continuations, vocab] after the last token of each, valid until the next call. UserError if a
  /// sequence would be longer than max_length().
  std::span<const float> append(const Context& context, std::span<const Continuation> continuations);
  /// The same with logits after every token: [all tokens, vocab], in the order of the continuations.
  std::span<const float> append_all(const Context& context, std::span<const Continuation> continuations);

  /// Appends tokens and returns the scores of all targets, in the order of the continuations. UserError if a logit is
  /// not finite or a sequence would be too long.
  std::vector<TokenScore> score(const Context& context, std::span<const ScoredContinuation> continuations);

  /// Removes all tokens of a sequence.
  void reset(int64_t sequence) { truncate(sequence, 0); }
  /// Removes all but the first `length` tokens of a sequence.
  void truncate(int64_t sequence, int64_t length);
  /// Copies the first `length` tokens of sequence `from` to empty sequences.
  void copy_prefix(const Context& context, int64_t from, std::span<const int64_t> to, int64_t length);
  /// Removes all sequences and divides the cache into `batch` sequences of up to `length` tokens, at most cache_tokens
  /// in total.
  void resize_cache(int64_t batch, int64_t length);
  /// Discards the CUDA graphs: the next pass of each kind is launched kernel by kernel.
  void clear_graphs() { steps_.clear(); }
  int64_t length(int64_t sequence) const { return lengths_.at(static_cast<size_t>(sequence)); }
  int64_t max_length() const { return cache_length_; }
  int64_t batch() const { return sizes_.batch; }
  int64_t vocab_size() const { return config_.model.vocab_size; }
  /// Number of passes that used persistent_decoder.h, without replayed CUDA graphs.
  int64_t megakernel_passes() const { return persistent_decoder_.passes(); }
  /// Bytes of weights that a pass with `rows` rows reads on this rank. With experts an upper bound, since rows may
  /// select the same ones.
  int64_t weight_bytes(int64_t rows) const;

 private:
  void plan_feed_forward(MemoryPlan& plan);
  void start(const Context& context);
  /// A token of a pass.
  struct Row {
    int32_t token, sequence, position;
    int64_t logits;  ///< row of the result, or -1 if its logits are not needed
  };
  void append_rows(const Continuation& next, std::vector<Row>& rows);
  std::span<const float> run(const Context& context, std::span<const Continuation> continuations, bool all);
  Tensor pass(const Context& context, std::span<const Row> rows, int64_t padded);
  void fill_ids(std::span<const Row> rows, int64_t padded);
  Tensor run_pass(const Context& context, int64_t padded, int64_t count, bool one_token_per_sequence);
  bool uses_megakernel() const { return sizes_.megakernel != MegakernelMode::never && is_single_rank(); }
  bool uses_megakernel(int64_t rows) const;
  bool is_single_rank() const { return tensor_.size() == 1 && groups_.grid()[parallel::Axis::pipeline] == 1; }
  bool can_capture(const Context& context, std::span<const Row> rows) const;
  void run_step(const Context& context, std::span<const Row> rows, int64_t padded);
  int64_t padded_rows(const Context& context, int64_t rows, bool always = false) const;
  std::deque<model::LayerActivations> activations(int64_t rows) const;
  Tensor forward(const Context& context, int64_t rows, int64_t appended, bool one_token_per_sequence);
  void run_layers(const Context& context, std::deque<model::LayerActivations>& activations,
                  const model::Pass& pass);
  void read_logits(const Context& context, const Tensor& states, std::span<const Row> rows);
  void gather_logits(const Context& context, const Tensor& h, std::span<const Row> rows);
  void logits_to_host(const Context& context, const Tensor& h);
  void take_logits(std::span<const Row> rows);
  void broadcast_from_last_stage(const Context& context, const Tensor& results) const;
  void plan_scores(MemoryPlan& plan, const Context& context);
  int64_t scored_chunk(int64_t begin, int64_t padded) const {
    return std::min(sizes_.score_rows, padded - begin);
  }
  void score_pass(const Context& context, const Tensor& states, std::span<const int32_t> targets);
  void read_scores(int64_t padded, std::span<const int32_t> targets, std::vector<TokenScore>& scores) const;

  config::Config config_;
  DecoderSizes sizes_;
  const parallel::Groups& groups_;
  parallel::TensorParallel tensor_;
  model::ContextParallel context_ranks_;  ///< one rank: no context parallelism
  std::unique_ptr<fp8::Recipe> recipe_;
  bool scale_groups_;  ///< a recipe has scales per row or block, whose kernels need whole groups of rows
  model::Stack stack_;
  const model::Dimensions& dims_;
  std::deque<CachedAttention> attention_;  ///< per layer
  PersistentDecoder persistent_decoder_;   ///< for passes with one token per sequence
  CachedRows rows_;                        ///< of the current pass
  std::vector<int64_t> lengths_;           ///< per sequence
  int64_t cache_length_ = 0;               ///< maximum length of a sequence
  /// A pass with one token per sequence and logits for all: captured when it runs for the second time.
  struct Step {
    bool seen = false;
    DeviceGraph graph;
  };
  std::map<std::pair<int64_t, int64_t>, Step>
      steps_;                    ///< by (rows with padding, rows), for the current cache layout
  int64_t max_input_width_ = 0;  ///< of a linear layer

  // Buffers of one pass with max_rows rows, shared by all layers.
  PlannedTensor ids_;  ///< int32 [3, max_rows]: tokens, sequences, positions
  PlannedTensor x_in_, x_mid_, delta_, sublayer_out_, hidden_, qkv_, attention_out_;
  std::vector<std::unique_ptr<model::FeedForward::Activations>> feed_forward_;  ///< per layer, in one memory
  PlannedTensor qk_norm_sums_;  ///< fp32 [max_rows, 2], only if a QK norm spans the tensor-parallel ranks
  PlannedTensor fp8_rows_, fp8_scale_inv_;
  Planned<model::Norm::Statistics> statistics_;
  // Up to `batch` rows; logits_ has at least score_rows.
  PlannedTensor last_hidden_, logits_,
      all_logits_;  ///< logits_: this rank's shard; all_logits_: [ranks, rows, shard]
  HostBuffer host_ids_, host_logits_;
  // For score(): the numbers of CrossEntropyStatistics of each row of a pass (kernels/cross_entropy), in chunks of
  // score_rows rows, [ranks, 4, rows of the chunk] each.
  PlannedTensor targets_, statistics_of_rows_;
  HostBuffer host_targets_, host_statistics_;
  std::vector<float> result_;
};

}  // namespace te::generate
