// A model that continues sequences: the layers of training, run forward over the new tokens alone, with attention over
// a cache of the keys and values of earlier tokens. It holds weights, cache and the activations of one pass; no
// gradients.
//
// A pass takes any number of tokens of any sequences (a prompt, parts of several, one token of each); what is longer
// than max_rows is cut into passes. Tensor ranks hold slices of everything, pipeline ranks the layers of their stage;
// all run the same calls and get the same logits. A pass goes through the stages one after another, and what the last
// one finds goes round to the others.
//
// FP8 needs rows in multiples of 16, but for the few that a GPU multiplies in its own way (kernels/gemm/gemm.h): a pass
// is filled up with repetitions of its last row, which change no scale.
// Tensorwise scales come from all rows of a pass, so results depend on what else is in it.
//
// Passes of one token a sequence, which come again and again, are recorded as device graphs: a GPU is then given one
// item instead of some hundred kernels of microseconds each.
//
// Evaluation asks for the probabilities of given tokens instead of logits: score() keeps the logits on the device, and
// truncate() lets several continuations of one text follow one another on the keys and values of that text.
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
#include "model/embedding.h"
#include "model/layer_config.h"
#include "model/output_layer.h"
#include "model/transformer_layer.h"
#include "parallel/groups.h"

namespace te::generate {

/// Which passes of one token each of a few sequences go by persistent_decoder.h, of those that can.
enum class MegakernelMode : uint8_t {
  never,
  where_faster,  ///< as measured on an H200 (docs/log/decoding.md): one row, and of FP8 weights up to four
  always
};

struct DecoderSizes {
  int64_t batch = 1;       ///< sequences in the cache
  int64_t max_rows = 512;  ///< tokens of one pass, a multiple of 16
  /// Tokens that the cache holds, for resize_cache(); 0: batch sequences of the longest length.
  int64_t cache_tokens = 0;
  int64_t score_rows = 0;  ///< for score(): rows whose logits are made at a time, a power of 2 up to max_rows
  MegakernelMode megakernel = MegakernelMode::never;
};

/// Tokens that one sequence goes on with.
struct Continuation {
  int64_t sequence = 0;
  std::span<const int32_t> tokens;
};

/// The same, and what its last targets.size() tokens are followed by (at most tokens.size() of them, maybe none).
struct ScoredContinuation {
  int64_t sequence = 0;
  std::span<const int32_t> tokens, targets;
};

/// How the model judges a target.
struct TokenScore {
  double log_probability = 0.0;  ///< natural logarithm
  bool is_argmax = false;        ///< no token's logit is larger
};

class Decoder {
 public:
  /// config.model.seq_length is the longest sequence; precision, model, parallel.tensor and pipeline are read as in
  /// training, but the delayed recipe becomes tensorwise. The groups must outlive the decoder.
  Decoder(const config::Config& config, const parallel::Groups& groups, const DecoderSizes& sizes);
  Decoder(const Decoder&) = delete;

  /// Without weights of its own it reads those of another model on the same device.
  void plan(MemoryPlan& plan, const Context& context, bool own_weights = true);
  void bind(const Context& context);
  /// The same of a decoder without weights of its own: `weights` are of the same model and of as many tensor ranks, and
  /// outlive it. They may change between two calls. Not with FP8, whose casts would be those of old values.
  void bind(const Context& context, const parameters::ParameterStore& weights);
  parameters::ParameterStore& parameters() { return parameters_; }
  /// After the values were loaded: casts the weights of FP8 layers.
  void quantize_weights(const Context& context);

  /// Appends tokens to their sequences, each sequence at most once, no continuation empty. Returns FP32 logits
  /// [continuations, vocab] of what follows the last token of each, valid until the next call. UserError when a
  /// sequence would be longer than max_length().
  std::span<const float> append(const Context& context, std::span<const Continuation> continuations);
  /// The same with the logits after every token: [all tokens, vocab], in the order of the continuations.
  std::span<const float> append_all(const Context& context, std::span<const Continuation> continuations);

  /// Appends tokens likewise, and says how probable the targets were: the scores of all targets, in the order of the
  /// continuations. UserError when a logit is not finite, or a sequence would be too long.
  std::vector<TokenScore> score(const Context& context, std::span<const ScoredContinuation> continuations);

  /// Forgets a sequence.
  void reset(int64_t sequence) { truncate(sequence, 0); }
  /// Forgets all of a sequence but its first `length` tokens.
  void truncate(int64_t sequence, int64_t length);
  /// Gives sequences that are empty the first `length` tokens of another one.
  void copy_prefix(const Context& context, int64_t from, std::span<const int64_t> to, int64_t length);
  /// Forgets everything and cuts the cache anew: `batch` sequences of up to `length` tokens, not more than cache_tokens
  /// together.
  void resize_cache(int64_t batch, int64_t length);
  /// The next pass of each kind is launched kernel by kernel again.
  void clear_graphs() { steps_.clear(); }
  int64_t length(int64_t sequence) const { return lengths_.at(static_cast<size_t>(sequence)); }
  int64_t max_length() const { return cache_length_; }
  int64_t batch() const { return sizes_.batch; }
  int64_t vocab_size() const { return config_.model.vocab_size; }
  /// Passes that went by persistent_decoder.h, replayed ones aside.
  int64_t megakernel_passes() const { return persistent_decoder_.passes(); }
  /// Bytes of weights that every pass reads on this rank, however few its rows; after plan().
  int64_t weight_bytes() const { return weight_bytes_; }

 private:
  void start(const Context& context);
  int64_t read_weights(int64_t fp8_bytes) const;
  /// A token of a pass.
  struct Row {
    int32_t token, sequence, position;
    int64_t logits;  ///< row of the result that it gives, or -1
  };
  void append_rows(const Continuation& next, std::vector<Row>& rows);
  std::span<const float> run(const Context& context, std::span<const Continuation> continuations, bool all);
  Tensor pass(const Context& context, std::span<const Row> rows, int64_t padded);
  void fill_ids(std::span<const Row> rows, int64_t padded);
  Tensor run_pass(const Context& context, int64_t padded, int64_t count, bool one_token_per_sequence);
  bool uses_megakernel() const { return sizes_.megakernel != MegakernelMode::never && is_single_rank(); }
  bool uses_megakernel(int64_t rows) const;
  bool is_single_rank() const { return tensor_.size() == 1 && groups_.grid().pipeline == 1; }
  bool can_capture(const Context& context, std::span<const Row> rows) const;
  void run_step(const Context& context, std::span<const Row> rows, int64_t padded);
  int64_t padded_rows(const Context& context, int64_t rows, bool always = false) const;
  model::LayerActivations activations(int64_t rows) const;
  Tensor forward(const Context& context, int64_t rows, int64_t appended, bool one_token_per_sequence);
  void run_layers(const Context& context, model::LayerActivations& a, const model::Pass& pass);
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
  model::ContextParallel context_ranks_;  ///< this rank alone: sequences are whole
  model::LayerConfig layer_config_;
  model::Dimensions dims_;
  parameters::ParameterStore parameters_;
  std::unique_ptr<fp8::Recipe> recipe_;
  model::RotaryEmbedding rope_;
  std::unique_ptr<model::VocabParallelEmbedding> embedding_;  ///< of the first stage
  std::deque<model::TransformerLayer> layers_;                ///< of this stage
  std::unique_ptr<model::Norm> final_layernorm_;              ///< of the last stage, and so is the next
  std::unique_ptr<model::OutputLayer> output_layer_;

  std::deque<CachedAttention> attention_;  ///< by layer
  PersistentDecoder persistent_decoder_;   ///< of passes of one token a sequence
  CachedRows rows_;                        ///< of the pass that runs
  std::vector<int64_t> lengths_;           ///< by sequence
  int64_t cache_length_ = 0;               ///< longest sequence
  /// A pass of one token a sequence, with the logits of all: seen before, then recorded.
  struct Step {
    bool seen = false;
    DeviceGraph graph;
  };
  std::map<std::pair<int64_t, int64_t>, Step>
      steps_;  ///< by rows with padding, and rows; of this arrangement
  int64_t weight_bytes_ = 0;

  // Of one pass, shared by all layers, with max_rows rows.
  Tensor ids_;  ///< int32 [3, max_rows]: tokens, sequences, positions
  Tensor x_in_, x_mid_, delta_, sublayer_out_, hidden_, qkv_, attention_out_;
  std::unique_ptr<model::FeedForward::Activations> feed_forward_;
  Tensor qk_norm_sums_;  ///< fp32 [max_rows, 2], where tensor ranks share norms of queries and keys
  Tensor fp8_rows_, fp8_scale_inv_;
  model::Norm::Statistics statistics_;
  // Of up to `batch` rows; logits_ also has the score_rows.
  Tensor last_hidden_, logits_, all_logits_;  ///< the last two: this rank's slice, and [ranks, rows, slice]
  HostBuffer host_ids_, host_logits_;
  // Of score(): what softmax and target say of each row of a pass (kernels/cross_entropy), chunk by chunk of
  // score_rows, [ranks, 3, rows of the chunk] each.
  Tensor targets_, statistics_of_rows_;
  HostBuffer host_targets_, host_statistics_;
  std::vector<float> result_;
};

}  // namespace te::generate
