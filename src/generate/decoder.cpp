#include "generate/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "core/error.h"
#include "generate/weight_bytes.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantize/quantize.h"
#include "parallel/watchdog.h"

namespace te::generate {
namespace {

constexpr int64_t kFp8Rows = 16;
constexpr int64_t kMaxCapturedRows = 64;  ///< with more rows, kernels run longer than their launches take

config::Config decoder_config(config::Config config) {
  config.precision = fp8::stateless_precision(config.precision);
  config.precision.mx_gemms = false;  // passes of a few rows suit no such GEMM
  config.model.hidden_dropout = config.model.attention_dropout = 0.0;
  config.parallel.context = config.parallel.virtual_stages = 1;
  config.trains = {};
  return config;
}

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The first rows of a larger buffer; empty if the buffer is.
Tensor first_rows(const Tensor& buffer, int64_t rows) {
  return buffer ? buffer.slice_rows(0, rows) : Tensor{};
}

Tensor first_elements(const Tensor& vector, int64_t count) {
  return vector ? Tensor{vector.data, vector.dtype, {count}} : Tensor{};
}

std::unique_ptr<fp8::Recipe> recipe_of(const config::Config& config, const parallel::Groups& groups) {
  auto recipe = fp8::make_recipe(config.precision, static_cast<int>(config.model.num_layers));
  recipe->set_amax_groups(groups.tensor(), groups.stage());
  if (groups.tensor().size() == 1 && groups.grid()[parallel::Axis::pipeline] == 1)
    recipe->use_single_amax_buffer();
  return recipe;
}

bool has_scale_groups(const config::Config& config) {
  return std::ranges::any_of(config::recipes_of(config.precision, config.model.num_layers),
                             [](config::Fp8Recipe recipe) { return config::traits_of(recipe).scale_groups; });
}

}  // namespace

// From the config to the layers:
//   1. config_                   decoder_config: no dropout, no state over several steps, full sequences
//   2. tensor_, context_ranks_   the groups in which the ranks of a layer communicate
//   3. recipe_                   how the layers quantize (fp8::make_recipe)
//   4. stack_                    LayerConfig::of; embedding, layers (each with a FeedForward from the factory), output
//   5. attention_                per layer, with the cache of its keys and values, instead of the layer's own attention
//   6. plan()                    weights, cache, and activations of one pass that all layers share
//   7. bind()                    after the allocation: parameters and tables; then load and quantize_weights()
Decoder::Decoder(const config::Config& config, const parallel::Groups& groups, const DecoderSizes& sizes,
                 const model::FeedForwardFactory& make_feed_forward)
    : config_(decoder_config(config)),
      sizes_(sizes),
      groups_(groups),
      tensor_(groups.tensor(), false, 1),
      context_ranks_(config_.model, config_.training.micro_batch_size),
      recipe_(recipe_of(config_, groups)),
      scale_groups_(has_scale_groups(config_)),
      stack_(config_, groups, *recipe_, tensor_, context_ranks_, make_feed_forward),
      dims_(stack_.config.dims) {
  TE_CHECK(sizes.batch > 0 && sizes.max_rows > 0 && sizes.max_rows % kFp8Rows == 0,
           "decoder: {} sequences and passes of {} rows; rows must be a multiple of 16", sizes.batch,
           sizes.max_rows);
  TE_CHECK(sizes.score_rows >= 0 && sizes.score_rows <= sizes.max_rows,
           "decoder: {} scored rows in passes of {} rows", sizes.score_rows, sizes.max_rows);
  if (sizes_.cache_tokens == 0) sizes_.cache_tokens = sizes_.batch * config_.model.seq_length;
  for (const model::TransformerLayer& layer : stack_.layers) {
    const config::ModelConfig own = config_.model.of_layer(layer.index());
    attention_.emplace_back(own, tensor_.size(), stack_.rope.of(own), rows_);
  }
}

// --- memory ------------------------------------------------------------------------------------------------

void Decoder::plan(MemoryPlan& plan, const Context& context, bool own_weights) {
  if (own_weights)
    stack_.parameters.plan(plan, {.dtype = dims_.dtype, .tensor_rank = tensor_.rank(), .training = false});
  recipe_->plan(plan);
  stack_.rope.plan(plan, config_.model);
  for (model::TransformerLayer& layer : stack_.layers) layer.plan_weights(plan, false, false);
  const config::ModelConfig& model = config_.model;
  for (size_t i = 0; i < attention_.size(); ++i)
    attention_[i].plan(plan, layer_name(static_cast<int64_t>(i)), dims_.dtype, sizes_.cache_tokens);
  const int64_t rows = sizes_.max_rows;
  const auto add = [&](PlanSlot slot, const char* name, DType dtype, Shape shape) {
    plan.add(slot, name, MemoryKind::scratch, dtype, shape);
  };
  add(ids_, "ids", DType::i32, {3, rows});
  add(x_in_, "x_in", dims_.dtype, {rows, dims_.hidden});
  add(x_mid_, "x_mid", dims_.dtype, {rows, dims_.hidden});
  add(delta_, "delta", dims_.dtype, {rows, dims_.hidden});
  if (model.norm_placement != config::NormPlacement::pre)
    add(sublayer_out_, "sublayer_out", dims_.dtype, {rows, dims_.hidden});
  add(hidden_, "hidden", dims_.dtype, {rows, dims_.hidden});
  add(qkv_, "qkv", dims_.dtype, {rows, dims_.qkv});
  if (model::QkNorm::shares_norms(model, tensor_)) add(qk_norm_sums_, "qk_norm_sums", DType::f32, {rows, 2});
  add(attention_out_, "attention_out", dims_.dtype, {rows, dims_.attention});
  plan_feed_forward(plan);
  if (recipe_->quantizes()) {
    add(fp8_rows_, "fp8_input", recipe_->widest_values(), {rows * max_input_width_});
    add(fp8_scale_inv_, "fp8_input.scale_inv", DType::f32,
        kernels::scale_shape(kernels::ScaleLayout::vectors, rows, max_input_width_));
  }
  if (uses_megakernel()) persistent_decoder_.plan(plan);
  add({statistics_, statistics_.rstd}, "norm.rstd", DType::f32, {rows});
  if (model.layer_norm()) add({statistics_, statistics_.mean}, "norm.mean", DType::f32, {rows});
  add(last_hidden_, "last_hidden", dims_.dtype, {sizes_.batch, dims_.hidden});
  add(logits_, "logits", DType::f32, {std::max(sizes_.batch, sizes_.score_rows), dims_.vocab});
  if (tensor_.size() > 1)
    add(all_logits_, "all_logits", DType::f32, {tensor_.size(), sizes_.batch * dims_.vocab});
  host_ids_ = HostBuffer(context, static_cast<size_t>(3 * rows) * sizeof(int32_t));
  host_logits_ =
      HostBuffer(context, static_cast<size_t>(tensor_.size() * sizes_.batch * dims_.vocab) * sizeof(float));
  if (sizes_.score_rows > 0) plan_scores(plan, context);
}

// Layers run one after another, so their activations share memory.
void Decoder::plan_feed_forward(MemoryPlan& plan) {
  max_input_width_ = std::max(dims_.hidden, dims_.attention);
  plan.overlay(static_cast<int>(stack_.layers.size()), [&](int layer) {
    const model::FeedForward& feed_forward = stack_.layers[static_cast<size_t>(layer)].feed_forward();
    feed_forward_.push_back(feed_forward.make_activations());
    feed_forward.plan_inference(plan, *feed_forward_.back(), sizes_.max_rows);
    max_input_width_ = std::max(max_input_width_, feed_forward.max_input_width());
  });
}

int64_t Decoder::weight_bytes(int64_t rows) const {
  return generate::weight_bytes(config_, stack_, rows);
}

void Decoder::bind(const Context& context) {
  stack_.parameters.bind(context);
  start(context);
}

void Decoder::bind(const Context& context, const parameters::ParameterStore& weights) {
  TE_CHECK(!recipe_->quantizes(), "decoder: weights of another model cannot be used with FP8");
  for (parameters::Parameter& parameter : stack_.parameters.parameters()) {
    const auto found = std::ranges::find(weights.parameters(), parameter.id, &parameters::Parameter::id);
    TE_CHECK(found != weights.parameters().end() && found->value.shape == parameter.shape &&
                 found->value.dtype == dims_.dtype,
             "decoder: {} is missing in the weights of the other model or has another shape or dtype",
             parameter.name);
    parameter.value = found->value;
  }
  stack_.parameters.use_ones_of(weights);
  start(context);
  quantize_weights(context);  // without FP8 this quantizes nothing: GEMMs read the current weights
}

void Decoder::start(const Context& context) {
  stack_.rope.fill(context, config_.model);
  recipe_->reset(context);
  if (uses_megakernel()) persistent_decoder_.start(context);
  resize_cache(sizes_.batch, config_.model.seq_length);
}

void Decoder::quantize_weights(const Context& context) {
  for (model::TransformerLayer& layer : stack_.layers) layer.quantize_weights(context);
}

// --- sequences ---------------------------------------------------------------------------------------------

void Decoder::truncate(int64_t sequence, int64_t length) {
  int64_t& now = lengths_.at(static_cast<size_t>(sequence));
  TE_CHECK(length >= 0 && length <= std::max<int64_t>(now, 0),
           "decoder: sequence {} has {} tokens and cannot be truncated to {}", sequence, now, length);
  now = length;
}

void Decoder::copy_prefix(const Context& context, int64_t from, std::span<const int64_t> to, int64_t length) {
  TE_CHECK(length > 0 && length <= this->length(from),
           "decoder: cannot copy {} tokens of sequence {}, which has {}", length, from, this->length(from));
  for (const int64_t sequence : to) {
    TE_CHECK(this->length(sequence) == 0, "decoder: cannot copy to sequence {}, which already has {} tokens",
             sequence, this->length(sequence));
    for (const CachedAttention& attention : attention_)
      attention.copy_prefix(context, from, sequence, length);
    lengths_[static_cast<size_t>(sequence)] = length;
  }
}

void Decoder::resize_cache(int64_t batch, int64_t length) {
  TE_CHECK(
      batch > 0 && length > 0 && length <= config_.model.seq_length && batch * length <= sizes_.cache_tokens,
      "decoder: {} sequences of {} tokens do not fit a cache of {} tokens", batch, length,
      sizes_.cache_tokens);
  lengths_.assign(static_cast<size_t>(batch), 0);
  cache_length_ = length;
  clear_graphs();
  for (CachedAttention& attention : attention_) attention.resize_cache(batch, length);
}

// --- tokens to passes --------------------------------------------------------------------------------------

std::span<const float> Decoder::append(const Context& context, std::span<const Continuation> continuations) {
  return run(context, continuations, false);
}

std::span<const float> Decoder::append_all(const Context& context,
                                           std::span<const Continuation> continuations) {
  return run(context, continuations, true);
}

// Adds the rows of a continuation, without results; UserError if the sequence becomes too long.
void Decoder::append_rows(const Continuation& next, std::vector<Row>& rows) {
  const int64_t before = length(next.sequence), after = before + static_cast<int64_t>(next.tokens.size());
  TE_CHECK(!next.tokens.empty(), "decoder: empty continuation of sequence {}", next.sequence);
  if (after > max_length())
    user_error("the model's context of {} tokens is too short for {} tokens", max_length(), after);
  for (int64_t i = before; i < after; ++i) {
    const int32_t token = next.tokens[static_cast<size_t>(i - before)];
    TE_CHECK(token >= 0 && token < vocab_size(), "decoder: token {} is not in the vocabulary of {}", token,
             vocab_size());
    rows.push_back({token, static_cast<int32_t>(next.sequence), static_cast<int32_t>(i), -1});
  }
  lengths_[static_cast<size_t>(next.sequence)] = after;
}

std::span<const float> Decoder::run(const Context& context, std::span<const Continuation> continuations,
                                    bool all) {
  std::vector<Row> rows;
  int64_t results = 0;
  for (const Continuation& next : continuations) {
    const size_t first = rows.size();
    append_rows(next, rows);
    for (size_t r = all ? first : rows.size() - 1; r < rows.size(); ++r) rows[r].logits = results++;
  }
  result_.resize(static_cast<size_t>(results * vocab_size()));
  const std::span<const Row> every(rows);
  const auto max_rows = static_cast<size_t>(sizes_.max_rows);
  for (size_t first = 0; first < rows.size(); first += max_rows) {
    const auto part = every.subspan(first, std::min(max_rows, rows.size() - first));
    const int64_t padded = padded_rows(context, static_cast<int64_t>(part.size()));
    const parallel::Watchdog::Guard guard(context, "generation");
    if (can_capture(context, part)) {
      run_step(context, part, padded);
    } else {
      read_logits(context, pass(context, part, padded), part);
    }
    context.synchronize();  // before the next pass reuses the host buffer of the ids
  }
  return result_;
}

// On a GPU, the first GEMM of each shape searches an algorithm, so passes are padded to a few numbers of rows.
int64_t Decoder::padded_rows(const Context& context, int64_t rows, bool always) const {
  if (context.is_cuda() && (always || rows > sizes_.batch)) {
    int64_t padded = kFp8Rows;
    while (padded < rows) padded *= 2;
    return std::min(padded, sizes_.max_rows);
  }
  // A few rows have a separate GEMM kernel.
  const bool few = context.is_cuda() && rows <= kernels::kFewRows && !scale_groups_;
  return recipe_->quantizes() && !few ? round_up(rows, kFp8Rows) : rows;
}

// Returns the final norm's output. The pass is padded to `padded` rows with copies of the last row. The caller must
// synchronize before the next pass.
Tensor Decoder::pass(const Context& context, std::span<const Row> rows, int64_t padded) {
  fill_ids(rows, padded);
  return run_pass(context, padded, static_cast<int64_t>(rows.size()), false);
}

void Decoder::fill_ids(std::span<const Row> rows, int64_t padded) {
  const auto count = static_cast<int64_t>(rows.size());
  auto* ids = host_ids_.as<int32_t>();
  for (int64_t r = 0; r < padded; ++r) {
    const Row& row = rows[static_cast<size_t>(std::min(r, count - 1))];
    ids[r] = row.token, ids[padded + r] = row.sequence, ids[2 * padded + r] = row.position;
  }
}

Tensor Decoder::run_pass(const Context& context, int64_t padded, int64_t count, bool one_token_per_sequence) {
  context.copy_to_device({ids_.data, DType::i32, {3, padded}}, host_ids_.as<int32_t>());
  return forward(context, padded, count, one_token_per_sequence);
}

// True for passes with one token each of different sequences. Only on one rank: with several ranks, all would have to
// capture the graph at the same time.
bool Decoder::can_capture(const Context& context, std::span<const Row> rows) const {
  const auto same_sequence = [](const Row& a, const Row& b) { return a.sequence == b.sequence; };
  const auto count = static_cast<int64_t>(rows.size());
  const bool small =
      !recipe_->quantizes() || round_up(count, kFp8Rows) * max_input_width_ <= kernels::kMaxSmallElements;
  return DeviceGraph::supported(context) && is_single_rank() && small &&
         count <= std::min(sizes_.batch, kMaxCapturedRows) &&
         std::ranges::all_of(rows, [](const Row& row) { return row.logits >= 0; }) &&
         std::ranges::adjacent_find(rows, same_sequence) == rows.end();
}

// The first time, kernels are launched one by one, which tunes their GEMMs; the second time, they are captured.
void Decoder::run_step(const Context& context, std::span<const Row> rows, int64_t padded) {
  const auto count = static_cast<int64_t>(rows.size());
  fill_ids(rows, padded);
  const auto work = [&] {
    const Tensor states = run_pass(context, padded, count, padded == count);
    if (states) return logits_to_host(context, states.slice_rows(0, count));
    context.copy_to_host(host_logits_.as<float>(), first_rows(logits_, count));
  };
  Step& step = steps_[{padded, count}];
  if (!std::exchange(step.seen, true)) {
    work();
  } else {
    if (!step.graph.recorded()) step.graph.record(context, work);
    step.graph.launch(context);
  }
  context.synchronize();
  take_logits(rows);
}

// --- the layers --------------------------------------------------------------------------------------------

// Per layer: the first rows of the shared buffers.
std::deque<model::LayerActivations> Decoder::activations(int64_t rows) const {
  std::deque<model::LayerActivations> all(stack_.layers.size());
  for (size_t i = 0; i < all.size(); ++i) {
    model::LayerActivations& a = all[i];
    a.x_in = first_rows(x_in_, rows);
    a.x_mid = first_rows(x_mid_, rows);
    a.delta = first_rows(delta_, rows);
    a.attention_out = a.mlp_out = first_rows(sublayer_out_, rows);
    a.norm1 = a.norm2 = a.post_norm1 =
        a.post_norm2 = {first_elements(statistics_.mean, rows), first_elements(statistics_.rstd, rows)};
    a.attention.core = &attention_[i];
    a.attention.qkv_input.high_precision = first_rows(hidden_, rows);
    a.attention.qkv = first_rows(qkv_, rows);
    a.attention.qk_norm.sums = first_rows(qk_norm_sums_, rows);
    a.attention.proj_input.high_precision = first_rows(attention_out_, rows);
    a.feed_forward =
        stack_.layers[i].feed_forward().first_rows(*feed_forward_[i], first_rows(hidden_, rows), rows);
  }
  return all;
}

// Returns the final norm's output; empty if another stage has it, or if the megakernel has computed the logits.
Tensor Decoder::forward(const Context& context, int64_t rows, int64_t appended, bool one_token_per_sequence) {
  const auto row_of_ids = [&](int64_t i) {
    return Tensor{ids_.as<int32_t>() + i * rows, DType::i32, {rows}};
  };
  rows_ = {
      .sequences = row_of_ids(1), .appended = appended, .one_token_per_sequence = one_token_per_sequence};
  const model::Pass pass{.kind = model::PassKind::evaluate, .positions = row_of_ids(2)};
  std::deque<model::LayerActivations> layers = activations(rows);
  model::LayerActivations& a = layers.front();
  if (stack_.embedding) {
    // x_mid is free until the first layer.
    stack_.embedding->forward(context, row_of_ids(0), a.x_in, {a.x_mid, a.norm1}, pass);
  } else {
    groups_.receive(context, a.x_in, parallel::Channel::forward_from_previous);
  }
  if (one_token_per_sequence && uses_megakernel(rows)) {
    const MegakernelOutputLayer output{*stack_.final_layernorm, *stack_.output_layer,
                                       first_rows(logits_, rows)};
    if (persistent_decoder_.forward(context, stack_.layers, output, layers, pass)) {
      stack_.output_layer->cap_logits(context, output.logits);
      return {};
    }
  }
  run_layers(context, layers, pass);
  const Tensor out = first_rows(hidden_, rows);
  if (!stack_.final_layernorm) {
    kernels::add(context, a.x_mid, a.delta, out);
    groups_.send(context, out, parallel::Channel::forward_to_next);
    return {};
  }
  stack_.final_layernorm->forward(context, a.x_mid, a.delta, a.x_in, a.norm1, {.high_precision = out});
  return out;
}

bool Decoder::uses_megakernel(int64_t rows) const {
  const int64_t max_faster_rows = recipe_->quantizes() ? 4 : 1;
  if (sizes_.megakernel == MegakernelMode::where_faster) return uses_megakernel() && rows <= max_faster_rows;
  return uses_megakernel();
}

// From x_in to the residual stream as (x_mid, delta).
void Decoder::run_layers(const Context& context, std::deque<model::LayerActivations>& activations,
                         const model::Pass& pass) {
  Tensor residual = activations.front().x_in, delta;
  for (size_t i = 0; i < stack_.layers.size(); ++i) {
    model::LayerActivations& a = activations[i];
    stack_.layers[i].share_input_layouts(a, fp8_rows_, fp8_scale_inv_);
    stack_.layers[i].forward(context, residual, delta, a, pass);
    residual = a.x_mid;
    delta = a.delta;
  }
}

// --- logits ------------------------------------------------------------------------------------------------

// Reads the logits of the requested rows, `batch` rows at a time; contiguous rows are not copied.
void Decoder::read_logits(const Context& context, const Tensor& states, std::span<const Row> rows) {
  std::vector<int64_t> wanted;
  for (size_t r = 0; r < rows.size(); ++r)
    if (rows[r].logits >= 0) wanted.push_back(static_cast<int64_t>(r));
  for (size_t first = 0; first < wanted.size(); first += static_cast<size_t>(sizes_.batch)) {
    const auto count =
        static_cast<int64_t>(std::min(static_cast<size_t>(sizes_.batch), wanted.size() - first));
    const int64_t begin = wanted[first];
    Tensor h = first_rows(last_hidden_, count);
    if (!states) {
      // Another stage has the states.
    } else if (wanted[first + static_cast<size_t>(count) - 1] - begin + 1 == count) {
      h = states.slice_rows(begin, count);
    } else {
      for (int64_t i = 0; i < count; ++i)
        context.copy(h.slice_rows(i, 1), states.slice_rows(wanted[first + static_cast<size_t>(i)], 1));
    }
    std::vector<Row> chosen;
    for (int64_t i = 0; i < count; ++i)
      chosen.push_back(rows[static_cast<size_t>(wanted[first + static_cast<size_t>(i)])]);
    gather_logits(context, h, chosen);
  }
}

void Decoder::gather_logits(const Context& context, const Tensor& h, std::span<const Row> rows) {
  logits_to_host(context, h);
  context.synchronize();
  take_logits(rows);
}

// Copies the logits of all ranks' shards of the vocabulary to the host: [ranks, rows, shard].
void Decoder::logits_to_host(const Context& context, const Tensor& h) {
  const int64_t count = h.rows(), slice = dims_.vocab, ranks = tensor_.size();
  Tensor logits = first_rows(logits_, count);
  if (stack_.output_layer) stack_.output_layer->logits(context, h, logits);
  if (ranks > 1) {
    const Tensor all{all_logits_.data, DType::f32, {ranks, count * slice}};
    if (stack_.output_layer) tensor_.group().all_gather(context, logits.view({count * slice}), all);
    logits = all;
  }
  broadcast_from_last_stage(context, logits);
  context.copy_to_host(host_logits_.as<float>(), logits);
}

// Copies logits from the host buffer to the result, without the padding of the vocabulary.
void Decoder::take_logits(std::span<const Row> rows) {
  const int64_t slice = dims_.vocab, ranks = tensor_.size(), count = static_cast<int64_t>(rows.size());
  const auto* host = host_logits_.as<float>();
  for (int64_t i = 0; i < count; ++i) {
    float* out = result_.data() + rows[static_cast<size_t>(i)].logits * vocab_size();
    for (int64_t rank = 0; rank < ranks && rank * slice < vocab_size(); ++rank) {
      const int64_t columns = std::min(slice, vocab_size() - rank * slice);
      std::memcpy(out + rank * slice, host + (rank * count + i) * slice,
                  static_cast<size_t>(columns) * sizeof(float));
    }
  }
}

// Sends the results around the ring of stages: from the last stage to the first one, and on to the second to last one.
void Decoder::broadcast_from_last_stage(const Context& context, const Tensor& results) const {
  const int stages = groups_.grid()[parallel::Axis::pipeline], at = groups_.at()[parallel::Axis::pipeline];
  if (stages == 1) return;
  if (!groups_.last_stage()) groups_.receive(context, results, parallel::Channel::forward_from_previous);
  if (at != stages - 2) groups_.send(context, results, parallel::Channel::forward_to_next);
}

}  // namespace te::generate
