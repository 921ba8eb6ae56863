// The keys of the architecture. See key_table.h for what each column means.
#include "config/key_rows.h"

namespace te::config {
namespace {

const auto kModelRows = std::to_array<Key>({
    {TE_KEY(model.family), kRequired, kAny,
     "Architecture: `gpt` has LayerNorm, biases, and unless the keys below say otherwise learned positions "
     "and GELU; "
     "`llama` has RMSNorm, RoPE and SwiGLU."},
    {TE_KEY(model.num_layers), kRequired, from_to(1, 10000), "Transformer layers."},
    {TE_KEY(model.hidden_size), kRequired, from_to(1, kMaxWidth), "Width of the residual stream."},
    {TE_KEY(model.ffn_hidden_size), "gpt: 4 * hidden_size; llama: required", from_to(1, kMaxWidth),
     "Width of the MLP; for `llama` that of each of the two halves of `linear_fc1`."},
    {TE_KEY(model.num_attention_heads), kRequired, from_to(1, 10000), "Attention (query) heads."},
    {TE_KEY(model.num_query_groups), "num_attention_heads", from_to(1, 10000),
     "Key and value heads; fewer than `num_attention_heads` is grouped-query attention. Divides "
     "`num_attention_heads`."},
    {TE_KEY(model.kv_channels), "hidden_size / num_attention_heads", from_to(1, 10000),
     "Width of one head. Even with RoPE; on a GPU a multiple of 8, at most 256, above 128 with slower "
     "attention "
     "([dtypes.md](dtypes.md#attention))."},
    {TE_KEY(model.vocab_size), kRequired, from_to(1, 1e7), "Tokens of the tokenizer, before padding."},
    {TE_KEY(model.make_vocab_size_divisible_by), kBuiltIn, from_to(1, kMaxWidth),
     "The embedding has `vocab_size` rows rounded up to a multiple of this."},
    {TE_KEY(model.seq_length), kRequired, from_to(1, 1e7), "Tokens per sequence."},
    {TE_KEY(model.max_position_embeddings), "seq_length", from_to(1, 1e7),
     "`learned`: rows of the position table. At least `seq_length`."},
    {TE_KEY(model.position_embedding), "gpt: learned; llama: rope", kAny,
     "`learned` is a table that is added to the embedding, `rope` the rotary position embedding. `llama` has "
     "`rope`."},
    {TE_KEY(model.rope_theta), kBuiltIn, above(0), "`rope`: base of the frequencies."},
    {TE_KEY(model.rope_local_theta), kBuiltIn, at_least(0),
     "`rope`: base of the frequencies, without scaling, in the layers that have the sliding window (Gemma "
     "3); "
     "0: theirs are those of the others."},
    {TE_KEY(model.rotary_percent), kBuiltIn, Range{.low = 0.0, .high = 1.0, .open_low = true},
     "`rope`: share of a head that is rotated. Of the pairs (i, i + `kv_channels` / 2) of a head the first "
     "turn, the "
     "others stay; `te-convert` puts the rows of other programs, which rotate the first channels, in this "
     "order."},
    {TE_KEY(model.rope_scaling), kBuiltIn, kAny,
     "`rope`: how the frequencies of a pretrained model were changed for longer sequences: `linear` is "
     "position interpolation, `llama3` the rule of Llama 3.1, `yarn` that of YaRN."},
    {TE_KEY(model.rope_scaling_factor), kBuiltIn, at_least(1),
     "`rope_scaling`: by how much the (slow) frequencies are divided."},
    {TE_KEY(model.rope_scaling_low_freq_factor), kBuiltIn, above(0),
     "`llama3`: frequencies with fewer turns than this within the original length are divided by the factor. "
     "Below `rope_scaling_high_freq_factor`."},
    {TE_KEY(model.rope_scaling_high_freq_factor), kBuiltIn, above(0),
     "`llama3`: frequencies with more turns than this within the original length stay as they are."},
    {TE_KEY(model.rope_scaling_original_max_position_embeddings), kBuiltIn, from_to(1, 1e9),
     "`llama3`, `yarn`: the original length, the sequence length of the model's first training."},
    {TE_KEY(model.rope_scaling_beta_fast), kBuiltIn, above(0),
     "`yarn`: frequencies with more turns than this within the original length stay as they are."},
    {TE_KEY(model.rope_scaling_beta_slow), kBuiltIn, above(0),
     "`yarn`: frequencies with fewer turns than this within the original length are divided by the factor. "
     "Below "
     "`rope_scaling_beta_fast`."},
    {TE_KEY(model.rope_scaling_attention_factor), kBuiltIn, at_least(0),
     "`yarn`: cosine and sine are multiplied by this; 0 is 0.1 ln(`rope_scaling_factor`) + 1."},
    {TE_KEY(model.rope_scaling_truncate), kBuiltIn, kAny,
     "`yarn`: the bounds between the two kinds of frequencies are rounded to whole pairs."},
    {TE_KEY(model.norm_epsilon), kBuiltIn, above(0),
     "Added to the variance (LayerNorm) or mean square (RMSNorm)."},
    {TE_KEY(model.tie_word_embeddings), "gpt: true; llama: false", kAny,
     "The output head shares the weight of the token embedding."},
    {TE_KEY(model.add_qkv_bias), kBuiltIn, kAny,
     "`llama`: a bias in `linear_qkv`. `gpt` has a bias in every linear and rejects this key and the next "
     "two."},
    {TE_KEY(model.add_proj_bias), kBuiltIn, kAny, "`llama`: a bias in `linear_proj`."},
    {TE_KEY(model.add_mlp_bias), kBuiltIn, kAny, "`llama`: a bias in `linear_fc1` and `linear_fc2`."},
    {TE_KEY(model.activation), "gpt: gelu; llama: swiglu", kAny,
     "Of the MLP: `gelu` is its tanh form, `gelu_exact` that with the error function. `llama` has `swiglu` "
     "or `geglu` (that tanh form as the gate, Gemma), and `gpt` any of the others."},
    {TE_KEY(model.swiglu_clamp), kBuiltIn, at_least(0),
     "`swiglu`: gates above this become this, and values of the up projection beyond plus or minus this as "
     "well, before the two are multiplied (gpt-oss; Megatron-LM's `activation_func_clamp_value`): against "
     "outliers late in training. 0 is no clamp."},
    {TE_KEY(model.qk_norm), kBuiltIn, kAny,
     "`llama`: RMSNorm of queries and keys before they are rotated, with gains of their own: of each `head` "
     "(Qwen3), or of the whole `projection` (OLMo 2)."},
    {TE_KEY(model.norm_placement), kBuiltIn, kAny,
     "`llama`: norms are in front of attention and MLP (`pre`), on their outputs, before these join the "
     "residual stream (`post`, OLMo 2), or in both places (`both`, Gemma)."},
    {TE_KEY(model.layernorm_zero_centered_gamma), kBuiltIn, kAny,
     "`llama`: norms multiply by 1 + their gain, which begins at 0 (Gemma)."},
    {TE_KEY(model.scale_embedding), kBuiltIn, kAny,
     "`llama`: the token embedding is multiplied by the square root of `hidden_size`, rounded to "
     "`precision.dtype` (Gemma)."},
    {TE_KEY(model.query_pre_attn_scalar), kBuiltIn, at_least(0),
     "Attention's scores are divided by the square root of this (Gemma); 0 is `kv_channels`."},
    {TE_KEY(model.parallel_residual), kBuiltIn, kAny,
     "`gpt`: attention and MLP, each behind its own norm, read the same residual stream (GPT-NeoX)."},
    {TE_KEY(model.sliding_window), kBuiltIn, from_to(0, 1e9),
     "A token attends to the last so many tokens, itself included; 0 is all before it. A window of at least "
     "`seq_length` changes nothing."},
    {TE_KEY(model.window_pattern), kBuiltIn, kAny,
     "Which layers have `sliding_window`: runs of layers, `w` with the window and `f` with full attention, a "
     "count in front of each unless it is 1, repeated over the layers. `5w f` is five layers with the window "
     "and one without, again and again (Gemma 3), `20f 8w` the last 8 of 28 (Qwen2). Empty is all layers.",
     "empty or runs of layers"},
    {TE_KEY(model.hidden_dropout), kBuiltIn, kFraction,
     "`gpt`: dropout of each block's output, and unless `embedding_dropout` is given of the embedding."},
    {TE_KEY(model.embedding_dropout), "hidden_dropout", kFraction, "`gpt`: dropout of the embedding."},
    {TE_KEY(model.attention_dropout), kBuiltIn, kFraction, "Dropout of the attention probabilities."},
    {TE_KEY(model.init_method_std), kBuiltIn, above(0), "Standard deviation of the initial weights."},
    {TE_KEY(model.embedding_init_method_std), kBuiltIn, at_least(0),
     "Standard deviation of the initial embeddings, which the output layer must not share and weight decay "
     "leaves alone; 0 is `init_method_std`, with weight decay. Around 1 the first norms do not multiply "
     "gradients by 1 / `init_method_std`, and the first steps spike less "
     "([experiments.md](experiments.md#embeddings-that-start-at-1-cpu))."},
});

}  // namespace

std::span<const Key> model_rows() {
  return kModelRows;
}

}  // namespace te::config
