#include "config/validate_model.h"

#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "config/text.h"
#include "config/validate_experts.h"
#include "config/window_pattern.h"
#include "core/error.h"

namespace te::config {
namespace {

void check_attention(const ModelConfig& m) {
  if (m.num_attention_heads % m.num_query_groups != 0) {
    user_error("model.num_attention_heads ({}) is not a multiple of model.num_query_groups ({}): {} remain",
               m.num_attention_heads, m.num_query_groups, m.num_attention_heads % m.num_query_groups);
  }
  if (m.rotary() && m.kv_channels % 2 != 0) {
    user_error("model.kv_channels ({}) must be even with RoPE, which rotates halves of a head",
               m.kv_channels);
  }
  if (m.rotary() && m.rotary_pairs() == 0) {
    user_error("model.rotary_percent ({}) leaves no pair of a head of model.kv_channels ({}) to rotate",
               m.rotary_percent, m.kv_channels);
  }
}

// Checks the keys of one model family or one kind of position embedding.
void check_family(const ModelConfig& m) {
  const bool gpt = m.family == Family::gpt;
  const ModelConfig plain;
  if (gpt && (m.add_qkv_bias || m.add_proj_bias || m.add_mlp_bias)) {
    user_error("model.{} is a key of model.family llama; gpt has a bias in every linear: leave it out",
               m.add_qkv_bias    ? "add_qkv_bias"
               : m.add_proj_bias ? "add_proj_bias"
                                 : "add_mlp_bias");
  }
  if (!gpt && !m.rotary())
    user_error("model.position_embedding learned is for model.family gpt; llama uses rope: leave it out");
  if (m.activation != ActivationKind::relu2 && gpt == m.gated()) {
    user_error(
        "model.activation {} is not for model.family {}: gpt supports gelu, gelu_exact, relu, relu2 and "
        "silu, llama swiglu, geglu and relu2",
        to_string(m.activation), to_string(m.family));
  }
  if (m.activation != ActivationKind::swiglu && m.swiglu_clamp != 0.0)
    user_error("model.swiglu_clamp ({}) is for model.activation swiglu, but it is {}: leave it out",
               m.swiglu_clamp, to_string(m.activation));
  if (gpt && (m.qk_norm != QkNorm::none || m.norm_placement != NormPlacement::pre)) {
    user_error("model.{} is a key of model.family llama: leave it out",
               m.qk_norm != QkNorm::none ? "qk_norm" : "norm_placement");
  }
  for (const auto& [given, key] :
       {std::pair{m.layernorm_zero_centered_gamma, "layernorm_zero_centered_gamma"},
        std::pair{m.scale_embedding, "scale_embedding"}, std::pair{m.embedding_norm, "embedding_norm"},
        std::pair{!m.norm_gain, "norm_gain"}})
    if (gpt && given) user_error("model.{} is a key of model.family llama: leave it out", key);
  if (m.layernorm_zero_centered_gamma && !m.norm_gain)
    user_error(
        "model.layernorm_zero_centered_gamma needs gains, but model.norm_gain is false: leave one out");
  if (m.tie_word_embeddings && m.embedding_init_method_std != 0.0)
    user_error(
        "model.embedding_init_method_std ({}) needs an untied embedding, but the output layer shares it: set "
        "model.init_method_std, or model.tie_word_embeddings to false",
        m.embedding_init_method_std);
  if (!gpt && m.parallel_residual)
    user_error("model.parallel_residual is a key of model.family gpt: leave it out");
  if (!gpt && m.hidden_dropout != 0.0)
    user_error("model.hidden_dropout ({}) must be 0 with model.family llama: only gpt has it",
               m.hidden_dropout);
  if (!m.rotary() && (m.rope_theta != plain.rope_theta || m.rope_scaling.kind != RopeScalingKind::none ||
                      m.rotary_percent != plain.rotary_percent)) {
    user_error("model.{} is for model.position_embedding rope, but it is learned: leave it out",
               m.rope_theta != plain.rope_theta               ? "rope_theta"
               : m.rope_scaling.kind != RopeScalingKind::none ? "rope_scaling"
                                                              : "rotary_percent");
  }
}

void check_initialization(const ModelConfig& m) {
  for (const std::string& name : m.zero_init) {
    const std::optional<LinearKind> kind = linear_kind_of(name);
    if (kind != LinearKind::proj && kind != LinearKind::fc2 && kind != LinearKind::output_layer)
      user_error("model.zero_init: {} is not linear_proj, linear_fc2 or output_layer", in_quotes(name));
  }
  if (m.tie_word_embeddings && m.starts_with_zeros(LinearKind::output_layer))
    user_error(
        "model.zero_init: output_layer shares the embedding's weights, which must not be 0: leave it out, or "
        "set model.tie_word_embeddings to false");
}

// Checks the keys of layers with a sliding window.
void check_windows(const ModelConfig& m) {
  const std::vector<bool> layers = parse_window_pattern(m.window_pattern);
  if (m.sliding_window == 0 && !m.window_pattern.empty())
    user_error(
        "model.window_pattern (\"{}\") needs model.sliding_window, which is 0: set it, or leave the pattern "
        "out",
        m.window_pattern);
  if (m.sliding_window == 0 && m.rope_local_theta != 0.0)
    user_error(
        "model.rope_local_theta ({}) is for layers with a window, but model.sliding_window is 0: "
        "leave it out",
        m.rope_local_theta);
  if (!m.rotary() && m.rope_local_theta != 0.0)
    user_error(
        "model.rope_local_theta is for model.position_embedding rope, but it is learned: leave it "
        "out");
  if (m.sliding_window == 0) return;
  for (int64_t layer = 0; layer < m.num_layers; ++layer)
    if (m.window_in(layer)) return;
  user_error(
      "model.window_pattern (\"{}\") gives none of the {} layers model.sliding_window ({}): correct "
      "it, or leave both out",
      m.window_pattern, m.num_layers, m.sliding_window);
}

}  // namespace

void check_fp8_dimension(const Config& c, const std::string& what, int64_t size) {
  Fp8Recipe recipe{};
  for (const Fp8Recipe used : recipes_of(c.precision, c.model.num_layers))
    if (multiple_of(c.precision, used) > multiple_of(c.precision, recipe)) recipe = used;
  const int64_t multiple = multiple_of(c.precision, recipe);
  if (size % multiple == 0) return;
  const int64_t below = size / multiple * multiple;
  const std::string nearest = below == 0 ? fmt::format("the nearest is {}", multiple)
                                         : fmt::format("the nearest are {} and {}", below, below + multiple);
  const std::string user = multiple == traits_of(Fp8Recipe{}).multiple
                               ? fmt::format("precision.fp8 {}", to_string(c.precision.fp8))
                               : fmt::format("recipe {}", to_string(recipe));
  user_error("{} needs GEMM dimensions that are multiples of {}, but {} = {} ({} * {} + {}); {}", user,
             multiple, what, size, below / multiple, multiple, size - below, nearest);
}

void check_model(const ModelConfig& m) {
  check_attention(m);
  if (m.max_position_embeddings < m.seq_length) {
    user_error(
        "model.max_position_embeddings ({}) is below model.seq_length ({}): the last {} positions have no "
        "embedding",
        m.max_position_embeddings, m.seq_length, m.seq_length - m.max_position_embeddings);
  }
  check_family(m);
  check_initialization(m);
  check_windows(m);
  check_experts(m);
}

}  // namespace te::config
