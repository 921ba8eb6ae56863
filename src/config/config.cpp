// Derived sizes of a config, and the defaults that depend on other keys.
#include "config/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "config/key_table.h"
#include "config/window_pattern.h"
#include "core/error.h"

namespace te::config {

int64_t ModelConfig::padded_vocab_size() const {
  const int64_t multiple = std::max<int64_t>(make_vocab_size_divisible_by, 1);
  return (vocab_size + multiple - 1) / multiple * multiple;
}

void ModelConfig::pad_vocabulary_for(int64_t tensor_ranks) {
  if (padded_vocab_size() % tensor_ranks != 0)
    make_vocab_size_divisible_by = std::lcm(make_vocab_size_divisible_by, tensor_ranks);
}

bool ModelConfig::gated() const {
  return activation == ActivationKind::swiglu || activation == ActivationKind::geglu ||
         (activation == ActivationKind::automatic && family == Family::llama);
}

bool ModelConfig::starts_with_zeros(LinearKind kind) const {
  return std::ranges::find(zero_init, te::to_string(kind)) != zero_init.end();
}

int64_t ModelConfig::rotary_pairs() const {
  return static_cast<int64_t>(static_cast<double>(kv_channels) * rotary_percent) / 2;
}

bool ModelConfig::window_in(int64_t layer) const {
  if (sliding_window == 0) return false;
  const std::vector<bool> layers = parse_window_pattern(window_pattern);
  return layers[static_cast<size_t>(layer) % layers.size()];
}

ModelConfig ModelConfig::of_layer(int64_t layer) const {
  ModelConfig model = *this;
  if (!window_in(layer)) model.sliding_window = 0;
  if (!has_experts(layer)) model.num_moe_experts = 0;
  return model;
}

int64_t ModelConfig::feed_forward_weights(int64_t layer, bool active) const {
  const int64_t per_width = gated() ? 3 : 2;  // fc1 and fc2
  if (!has_experts(layer)) return per_width * hidden_size * ffn_hidden_size;
  const int64_t experts = active ? moe_router_topk : num_moe_experts;
  const int64_t gate = moe_shared_expert_gate ? 1 : 0;
  return hidden_size * (per_width * (experts * moe_ffn_hidden_size + moe_shared_expert_intermediate_size) +
                        num_moe_experts + gate);
}

ModelConfig ModelConfig::with_local_rope() const {
  ModelConfig model = *this;
  if (!local_rope()) return model;
  model.rope_theta = rope_local_theta;
  model.rope_scaling = {};
  return model;
}

double ModelConfig::softmax_scale() const {
  return 1.0 /
         std::sqrt(query_pre_attn_scalar != 0.0 ? query_pre_attn_scalar : static_cast<double>(kv_channels));
}

namespace {

// Sets the defaults of a model family.
void resolve_family(ModelConfig& m) {
  const bool gpt = m.family == Family::gpt;
  if (m.position_embedding == PositionEmbedding::automatic)
    m.position_embedding = gpt ? PositionEmbedding::learned : PositionEmbedding::rope;
  if (m.activation == ActivationKind::automatic)
    m.activation = gpt ? ActivationKind::gelu : ActivationKind::swiglu;
}

/// value / 10, rounded in decimal: 3e-5 for 3e-4, whereas 3e-4 / 10 differs from 3e-5 in the last bit.
double tenth_of(double value) {
  const std::string text = fmt::format("{:.15g}", value / 10.0);
  double tenth = value / 10.0;
  std::from_chars(text.data(), text.data() + text.size(), tenth);
  return tenth;
}

}  // namespace

void follow_other_keys(Config& config, const std::function<bool(std::string_view path)>& given) {
  if (!given("model.tie_word_embeddings"))
    config.model.tie_word_embeddings = config.model.family == Family::gpt;
  if (!given("optimizer.min_lr")) config.optimizer.min_lr = tenth_of(config.optimizer.lr);
  ModelConfig& m = config.model;
  if (!given("model.moe_router_topk") && m.num_moe_experts > 0)
    m.moe_router_topk = std::min(m.moe_router_topk, m.num_moe_experts);
  GuardConfig& g = config.guard;
  if (!given("guard.compare_steps") && g.every > 1) g.compare_steps = std::min(g.compare_steps, g.every - 1);
  ParallelConfig& layout = config.parallel;
  if (!given("parallel.virtual_stages") && layout.schedule == PipelineSchedule::interleaved)
    layout.virtual_stages = 2;
  if (!given("parallel.schedule") && layout.virtual_stages > 1)
    layout.schedule = PipelineSchedule::interleaved;
}

void resolve_defaults(Config& config) {
  ModelConfig& m = config.model;
  resolve_family(m);
  if (m.ffn_hidden_size == 0 && m.family == Family::gpt) m.ffn_hidden_size = 4 * m.hidden_size;
  if (m.moe_ffn_hidden_size == 0 && m.num_moe_experts > 0) m.moe_ffn_hidden_size = m.ffn_hidden_size;
  if (m.num_query_groups == 0) m.num_query_groups = m.num_attention_heads;
  if (m.kv_channels == 0 && m.num_attention_heads > 0) {
    if (m.hidden_size % m.num_attention_heads != 0) {
      user_error(
          "model.hidden_size ({}) is not a multiple of model.num_attention_heads ({}): {} remain; correct "
          "one of them or set model.kv_channels",
          m.hidden_size, m.num_attention_heads, m.hidden_size % m.num_attention_heads);
    }
    m.kv_channels = m.hidden_size / m.num_attention_heads;
  }
  if (m.max_position_embeddings == 0) m.max_position_embeddings = m.seq_length;
  m.pad_vocabulary_for(config.parallel.tensor);
  OptimizerConfig& o = config.optimizer;
  if (o.decay_steps == 0) o.decay_steps = config.training.train_steps;
  if (o.wsd_decay_steps == 0) o.wsd_decay_steps = std::max<int64_t>(o.decay_steps / 10, 1);
  if (config.logging.directory.empty()) config.logging.directory = "runs/" + config.name;
  if (config.checkpoint.directory.empty())
    config.checkpoint.directory = config.logging.directory + "/checkpoints";
}

DType dtype_of(ComputeDType dtype) {
  if (dtype == ComputeDType::fp32) return DType::f32;
  return dtype == ComputeDType::fp16 ? DType::f16 : DType::bf16;
}

Fp8KeptWeights fp8_kept_weights(const Config& config) {
  const Fp8KeptWeights kept = config.precision.fp8_keep_weights;
  if (kept != Fp8KeptWeights::automatic) return kept;
  // A kept layout would contain whole layers, but the BF16 weights of whole layers exist only temporarily.
  if (config.parallel.shard == Shard::parameters) return Fp8KeptWeights::none;
  return config.optimizer.store_param_remainders ? Fp8KeptWeights::none : Fp8KeptWeights::rowwise;
}

bool mixes_precisions(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  return precision.fp8 != Fp8Mode::off &&
         (precision.fp8_from_step > 1 || precision.fp8_until_step > 0 || config.guard.every > 0);
}

bool reads_values_of_fp8_weights(const Config& config) {
  return config.logging.generate_every > 0 || config.evaluation.every > 0 || mixes_precisions(config);
}

// FP8 statistics read the tensors before quantization, and fp8_keep_weights none creates both layouts from BF16
// weights.
bool gathers_fp8_weights(const Config& config) {
  const PrecisionConfig& precision = config.precision;
  return precision.fp8 != Fp8Mode::off && precision.dtype == ComputeDType::bf16 &&
         precision.fp8_keep_weights != Fp8KeptWeights::none && config.logging.fp8_statistics_every == 0 &&
         !reads_values_of_fp8_weights(config);
}

}  // namespace te::config
