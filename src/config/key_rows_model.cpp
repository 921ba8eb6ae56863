// The keys of the architecture. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kModelRows = std::to_array<Key>({
    {TE_KEY(model.family), kRequired, kAny,
     "Architecture: `gpt` has LayerNorm, biases, learned positions and GELU by default; `llama` has RMSNorm, "
     "RoPE and SwiGLU."},
    {TE_KEY(model.num_layers), kRequired, from_to(1, 10000), "Number of transformer layers."},
    {TE_KEY(model.hidden_size), kRequired, from_to(1, kMaxWidth), "Width of the residual stream."},
    {TE_KEY(model.ffn_hidden_size), "gpt: 4 * hidden_size; llama: required", from_to(1, kMaxWidth),
     "Width of the MLP; for `llama`, the width of each half of `linear_fc1` (gate and up projection)."},
    {TE_KEY(model.num_attention_heads), kRequired, from_to(1, 10000), "Number of attention (query) heads."},
    {TE_KEY(model.num_query_groups), "num_attention_heads", from_to(1, 10000),
     "Number of key and value heads (grouped-query attention if fewer than `num_attention_heads`, which it "
     "must divide)."},
    {TE_KEY(model.kv_channels), "hidden_size / num_attention_heads", from_to(1, 10000),
     "Width of one attention head; even with RoPE, and on a GPU a multiple of 8 of at most 256 "
     "([reference/dtypes.md](dtypes.md))."},
    {TE_KEY(model.vocab_size), kRequired, from_to(1, 1e7),
     "Number of tokens of the tokenizer, before padding."},
    {TE_KEY(model.make_vocab_size_divisible_by), kBuiltIn, from_to(1, kMaxWidth),
     "The embedding is padded to a multiple of this many rows."},
    {TE_KEY(model.seq_length), kRequired, from_to(1, 1e7), "Sequence length in tokens."},
    {TE_KEY(model.max_position_embeddings), "seq_length", from_to(1, 1e7),
     "Rows of the table of learned positions; at least `seq_length`."},
    {TE_KEY(model.position_embedding), "gpt: learned; llama: rope", kAny,
     "Position encoding: a `learned` table that is added to the embedding (`gpt` only), or rotary embeddings "
     "(`rope`)."},
    {TE_KEY(model.rope_theta), kBuiltIn, above(0), "Base of the RoPE frequencies."},
    {TE_KEY(model.rope_local_theta), kBuiltIn, at_least(0),
     "Base of the RoPE frequencies, unscaled, in layers with a sliding window (Gemma 3); 0 uses `rope_theta` "
     "in all layers."},
    {TE_KEY(model.rotary_percent), kBuiltIn, Range{.low = 0.0, .high = 1.0, .open_low = true},
     "Share of each attention head that RoPE rotates: the first of the pairs (i, i + `kv_channels` / 2)."},
    {TE_KEY(model.rope_scaling), kBuiltIn, kAny,
     "RoPE scaling for longer sequences, as in Hugging Face's `config.json`: `rope_type` and `factor`, with "
     "the optional parameters of `llama3` and `yarn` ([reference/models.md](models.md#rope-scaling)).",
     "`none`, or `{rope_type: linear, llama3 or yarn, factor: ...}`"},
    {TE_KEY(model.norm_epsilon), kBuiltIn, above(0),
     "Added to the variance (LayerNorm) or mean square (RMSNorm)."},
    {TE_KEY(model.tie_word_embeddings), "gpt: true; llama: false", kAny,
     "Use the token embedding as the weight of the output layer."},
    {TE_KEY(model.add_qkv_bias), kBuiltIn, kAny,
     "`llama`: bias in `linear_qkv`; `gpt` always has biases and rejects the three `add_*_bias` keys."},
    {TE_KEY(model.add_proj_bias), kBuiltIn, kAny, "`llama`: bias in `linear_proj`."},
    {TE_KEY(model.add_mlp_bias), kBuiltIn, kAny, "`llama`: bias in `linear_fc1` and `linear_fc2`."},
    {TE_KEY(model.activation), "gpt: gelu; llama: swiglu", kAny,
     "MLP activation: `llama` takes `swiglu`, `geglu` or `relu2` (squared ReLU), `gpt` those without a gate; "
     "`gelu_exact` uses erf instead of tanh."},
    {TE_KEY(model.swiglu_clamp), kBuiltIn, at_least(0),
     "`swiglu`: clamp gates from above and up projections to plus or minus this before multiplying "
     "(gpt-oss); 0 disables."},
    {TE_KEY(model.qk_norm), kBuiltIn, kAny,
     "`llama`: RMSNorm of queries and keys before RoPE, per `head` (Qwen3; `head_no_gain`: nanochat) or over "
     "the whole `projection` (OLMo 2)."},
    {TE_KEY(model.norm_gain), kBuiltIn, kAny,
     "`llama`: RMSNorms multiply by a trained gain; for QK norms, `qk_norm` decides."},
    {TE_KEY(model.embedding_norm), kBuiltIn, kAny,
     "`llama`: RMSNorm without gain between the embedding and the first layer (nanochat)."},
    {TE_KEY(model.norm_placement), kBuiltIn, kAny,
     "`llama`: norms on sublayer inputs (`pre`), on outputs before the residual add (`post`, OLMo 2), or "
     "`both` (Gemma)."},
    {TE_KEY(model.layernorm_zero_centered_gamma), kBuiltIn, kAny,
     "`llama`: norms multiply by 1 + gamma, with gamma initialized to 0 (Gemma)."},
    {TE_KEY(model.scale_embedding), kBuiltIn, kAny,
     "`llama`: multiply the token embedding by the square root of `hidden_size`, rounded to "
     "`precision.dtype` (Gemma)."},
    {TE_KEY(model.query_pre_attn_scalar), kBuiltIn, at_least(0),
     "Attention scores are divided by the square root of this (Gemma); 0 is `kv_channels`."},
    {TE_KEY(model.parallel_residual), kBuiltIn, kAny,
     "`gpt`: attention and MLP read the same residual stream, each through its own norm (GPT-NeoX)."},
    {TE_KEY(model.sliding_window), kBuiltIn, from_to(0, 1e9),
     "Number of latest tokens, itself included, that a token attends to; 0 is unlimited."},
    {TE_KEY(model.window_pattern), kBuiltIn, kAny,
     "Layers with `sliding_window`, repeated over the depth: `5w f` is five with the window, one with full "
     "attention; empty is all layers.",
     "empty or runs of layers"},
    {TE_KEY(model.num_moe_experts), kBuiltIn, from_to(0, 1024),
     "`llama`: number of experts per layer (mixture of experts, dropless); 0 is none."},
    {TE_KEY(model.moe_router_topk), "2, or num_moe_experts where that is smaller", from_to(1, 1024),
     "Number of experts that each token uses."},
    {TE_KEY(model.moe_ffn_hidden_size), "ffn_hidden_size", from_to(0, kMaxWidth),
     "Width of each expert; 0 without experts."},
    {TE_KEY(model.moe_shared_expert_intermediate_size), kBuiltIn, from_to(0, kMaxWidth),
     "Width of the shared expert, which all tokens use; 0 is none."},
    {TE_KEY(model.moe_shared_expert_gate), kBuiltIn, kAny,
     "Multiply the shared expert's output by a sigmoid gate per token (Qwen2-MoE)."},
    {TE_KEY(model.moe_layer_freq), kBuiltIn, from_to(1, 10000),
     "Every n-th layer, from layer 0, has experts; the others have an MLP of `ffn_hidden_size`."},
    {TE_KEY(model.first_k_dense), kBuiltIn, from_to(0, 10000),
     "The first layers have an MLP instead of experts."},
    {TE_KEY(model.moe_router_score_function), kBuiltIn, kAny,
     "Scores of experts: `softmax` or `sigmoid` of the logits."},
    {TE_KEY(model.moe_router_norm_topk_prob), kBuiltIn, kAny,
     "Divide the selected experts' scores by their sum; with `softmax` the same as a softmax after the "
     "selection."},
    {TE_KEY(model.moe_router_topk_scaling_factor), kBuiltIn, above(0),
     "Factor of the selected experts' probabilities."},
    {TE_KEY(model.moe_router_num_groups), kBuiltIn, from_to(1, 1024),
     "Equal groups of experts for group-limited selection (DeepSeek)."},
    {TE_KEY(model.moe_router_group_topk), kBuiltIn, from_to(1, 1024),
     "Number of groups from which a token selects its experts; must divide `moe_router_topk`."},
    {TE_KEY(model.moe_router_load_balancing_type), kBuiltIn, kAny,
     "Balance loss of each microbatch on each rank, of each sequence, or with the step's loads so far on all "
     "ranks."},
    {TE_KEY(model.moe_router_force_load_balancing), kBuiltIn, kAny,
     "For benchmarks: tokens select the experts in turn instead of those with the largest scores."},
    {TE_KEY(model.moe_aux_loss_coeff), kBuiltIn, at_least(0),
     "Coefficient of the load-balancing loss of each layer."},
    {TE_KEY(model.moe_expert_capacity_factor), kBuiltIn, from_to(0, 1024),
     "Each expert keeps its most probable tokens of a rank's microbatch, at most this times the balanced "
     "load, except in "
     "generation; 0 keeps all."},
    {TE_KEY(model.moe_z_loss_coeff), kBuiltIn, at_least(0),
     "Coefficient of the mean squared logsumexp of each layer's router logits."},
    {TE_KEY(model.moe_router_enable_expert_bias), kBuiltIn, kAny,
     "Balance experts without a loss: each has a bias that is added to its score in the selection."},
    {TE_KEY(model.moe_router_bias_update_rate), kBuiltIn, above(0),
     "Change of each expert's bias per step, up below the mean load and down above it."},
    {TE_KEY(model.hidden_dropout), kBuiltIn, kFraction,
     "`gpt`: dropout of the embedding and of each sublayer's output."},
    {TE_KEY(model.attention_dropout), kBuiltIn, kFraction, "Dropout of the attention probabilities."},
    {TE_KEY(model.final_logit_softcapping), kBuiltIn, at_least(0),
     "Logits x become `cap` * tanh(x / `cap`), in training, evaluation and generation (Gemma 2, nanochat); 0 "
     "is no cap."},
    {TE_KEY(model.init_method_std), kBuiltIn, above(0), "Standard deviation of the initial weights."},
    {TE_KEY(model.embedding_init_method_std), kBuiltIn, at_least(0),
     "Standard deviation of initial embeddings, which then have no weight decay and must not be tied; 0 is "
     "`init_method_std` with weight decay."},
    {TE_KEY(model.zero_init), kBuiltIn, kAny,
     "Linear layers whose initial weights are 0; other `linear_proj` and `linear_fc2` start with "
     "`init_method_std` / sqrt(2 * `num_layers`).",
     "list of linear_proj, linear_fc2, output_layer"},
});

}  // namespace

std::span<const Key> model_rows() {
  return kModelRows;
}

}  // namespace te::config
