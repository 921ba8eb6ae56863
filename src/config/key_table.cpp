// The table of keys. See key_table.h for what each column means.
#include "config/key_table.h"

#include <array>

#include "config/enums.h"

namespace te::config {

namespace {

template <class T>
Field as_field(T& value) {
  if constexpr (std::is_enum_v<T>) {
    return EnumField{names_of(value), reinterpret_cast<uint8_t*>(&value)};
  } else {
    return &value;
  }
}

#define TE_KEY(member) #member, [](Config & c) -> Field { return as_field(c.member); }

constexpr Range kAny{};
constexpr Range from_to(double low, double high) {
  return {low, high, false, false};
}
constexpr Range at_least(double low) {
  return {.low = low};
}
constexpr Range above(double low) {
  return {.low = low, .open_low = true};
}
/// [0, 1)
constexpr Range kFraction{0.0, 1.0, false, true};
/// Steps and sizes are bounded so that products of them cannot overflow 64 bits.
constexpr double kMaxSteps = 1e9;
constexpr double kMaxWidth = 1e6;

constexpr std::string_view kSourcesRule = "`[[weight, prefix], ...]`, a list of prefixes, or one prefix";
constexpr std::string_view kSetsRule =
    "`[[weight, prefix], ...]`, a list of prefixes, or one prefix; or `{name: one of these, ...}`";

constexpr auto kSections = std::to_array<Section>({
    {"model", "The architecture. Names follow Megatron-LM where it has one."},
    {"precision",
     "Number formats. `fp8` is the one key that turns a BF16 run into an FP8 run; every other `fp8_*` key "
     "and the amax keys have no effect while it is `off`, unless `fp8_calibrate` is set."},
    {"parallel",
     "How the ranks of a job (`mpirun -n RANKS te-train ...`) share the work. Data parallelism takes what "
     "the other axes leave: RANKS / (`tensor` * `context` * `pipeline`), and its ranks share the "
     "optimizer's state (ZeRO-1). The layout does not change the mathematics."},
    {"training", "Batches, length, device. Batch sizes count sequences of `model.seq_length` tokens."},
    {"optimizer", "AdamW or Muon, and the learning-rate schedule. Steps are optimizer steps."},
    {"data",
     "Tokenized datasets (`PREFIX.bin` with `PREFIX.idx`, made by `te-data`). Relative paths start at the "
     "working directory."},
    {"checkpoint", "Saving and resuming."},
    {"logging", "What a run writes, and where."},
    {"evaluation",
     "Tasks that the model is judged by while it trains ([evaluate.md](evaluate.md#while-training))."},
    {"guard",
     "An FP8 run that compares itself with BF16 from one state ([fp8.md](fp8.md#the-guard)). While it only "
     "observes, the run "
     "computes the bits that it computes without."},
});

const auto kKeys = std::to_array<Key>({
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

    {TE_KEY(precision.dtype), kBuiltIn, kAny,
     "Activations, working weights and GEMMs that are not FP8 ([dtypes.md](dtypes.md))."},
    {TE_KEY(precision.tf32), kBuiltIn, kAny,
     "`dtype: fp32` on a GPU: GEMMs round what they multiply to TF32 (10 bits of mantissa), for several "
     "times the "
     "speed. `false` multiplies in FP32."},
    {TE_KEY(precision.loss_scale), kBuiltIn, at_least(0),
     "`dtype: fp16`: losses are multiplied by this, so that small gradients do not vanish; the update is of "
     "gradients "
     "divided by it. 0 is a scale that finds its size, by the next four keys ([dtypes.md](dtypes.md#fp16))."},
    {TE_KEY(precision.initial_loss_scale), kBuiltIn, above(0),
     "`loss_scale: 0`: the scale of the first step."},
    {TE_KEY(precision.min_loss_scale), kBuiltIn, above(0),
     "`loss_scale: 0`: the scale falls no lower. At most `initial_loss_scale`."},
    {TE_KEY(precision.loss_scale_window), kBuiltIn, from_to(1, kMaxSteps),
     "`loss_scale: 0`: after so many steps in a row with finite gradients the scale is doubled."},
    {TE_KEY(precision.hysteresis), kBuiltIn, from_to(1, 1000),
     "`loss_scale: 0`: steps without finite gradients, which are left out, before the scale is halved; from "
     "then "
     "on, until it has grown again, each halves it."},
    {TE_KEY(precision.fp8), kBuiltIn, kAny,
     "FP8 GEMMs of the transformer layers: `hybrid` is E4M3 forward and E5M2 for gradients, `e4m3` "
     "is E4M3 for both."},
    {TE_KEY(precision.fp8_recipe), kBuiltIn, kAny,
     "How scales are found: `delayed` from the amaxes of past steps; from the values themselves, "
     "`tensorwise` one per "
     "tensor, `rowwise` one per token or channel, `blockwise` one per 1 x 128 values (weights: 128 x 128)."},
    {TE_KEY(precision.fp8_scale_format), kBuiltIn, kAny,
     "`rowwise` and `blockwise`: scales are rounded down to powers of two, or kept as FP32 numbers."},
    {TE_KEY(precision.fp8_tensorwise_scale_format), kBuiltIn, kAny,
     "The same of `tensorwise`. A power of two is as a rule that of the last cast, so that operands are cast "
     "with it while they are made, as with `delayed`, and again where it has changed: faster, other "
     "numbers."},
    {TE_KEY(precision.fp8_keep_weights), kBuiltIn, kAny,
     "Forms of FP8 weights that are kept from pass to pass, a byte a parameter each; the others are made "
     "again right before a GEMM reads them, which changes no number: `none`, `rowwise` (what the forward "
     "pass reads), `both` (the fastest). `auto` is `none` with `optimizer.store_param_remainders` (but for "
     "weights that travel in FP8, `parallel.fp8_param_gather`) and with `parallel.shard: parameters`, else "
     "`rowwise`."},
    {TE_KEY(precision.amax_history_len), kBuiltIn, from_to(1, kMaxWidth),
     "`delayed`: steps of amax history."},
    {TE_KEY(precision.amax_compute_algo), kBuiltIn, kAny,
     "`delayed`: the scale follows the maximum of the history or its most recent entry."},
    {TE_KEY(precision.margin), kBuiltIn, from_to(0, 64),
     "Headroom in powers of two: scales are divided by 2^margin."},
    {TE_KEY(precision.fp8_recast), kBuiltIn, kAny,
     "`delayed`: inputs and gradients whose values outgrow the scale of earlier steps are cast again with "
     "the "
     "scale that their own amax asks for, so that nothing saturates. `false`: they saturate."},
    {TE_KEY(precision.first_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Layers at the input that stay in BF16."},
    {TE_KEY(precision.last_layers_bf16), kBuiltIn, from_to(0, 10000),
     "Layers at the output that stay in BF16."},
    {TE_KEY(precision.overrides), kBuiltIn, kAny,
     "Rules for single linears, layers, GEMMs and operands, one a line or separated by semicolons: "
     "`linear_fc2 wgrad: "
     "bf16; layers 0-1: blockwise` (docs/fp8.md). Without effect with `fp8: off`.",
     "empty or rules"},
    {TE_KEY(precision.fp8_output_layer), kBuiltIn, kAny,
     "With FP8: the GEMMs of the output layer, too. Faster where the vocabulary is large beside the "
     "model; the gradient of the logits, most of it tiny, then has the range of one tensor's E5M2 (E4M3 with "
     "`fp8: e4m3`)."},
    {TE_KEY(precision.fp8_calibrate), kBuiltIn, kAny,
     "With `fp8: off`: record the amaxes that an FP8 run would see, so that FP8 can take over at any step."},
    {TE_KEY(precision.fp8_calibration_passes), kBuiltIn, from_to(0, 1000),
     "`delayed`: microbatches that run before step 1, with scales of their own, to fill the amax history, so "
     "that step 1 has the right scales; likewise before the first step in FP8 behind steps in BF16, or "
     "behind "
     "a checkpoint without scales. 0 is Transformer Engine's behaviour: step 1 runs at scale 1."},
    {TE_KEY(precision.fp8_from_step), kBuiltIn, from_to(0, kMaxSteps),
     "The first step in FP8; the steps before it are taken in BF16. 0 is step 1."},
    {TE_KEY(precision.fp8_until_step), kBuiltIn, from_to(0, kMaxSteps),
     "The last step in FP8; the steps after it are taken in BF16. 0 is the run's last. At least "
     "`fp8_from_step`."},

    {TE_KEY(parallel.tensor), kBuiltIn, from_to(1, 1024),
     "Ranks that share every layer's matrices. Divides `num_query_groups` and `ffn_hidden_size`."},
    {TE_KEY(parallel.context), kBuiltIn, from_to(1, 1024),
     "Ranks that share the tokens of every sequence, for sequences too long for one. Twice as many divide "
     "`model.seq_length`. Attention exchanges heads where the query groups of a tensor rank are a multiple "
     "of it, keys and values otherwise."},
    {TE_KEY(parallel.pipeline), kBuiltIn, from_to(1, 1024), "Pipeline stages: ranks that share the layers."},
    {TE_KEY(parallel.sequence), kBuiltIn, kAny,
     "Sequence parallelism: the tensor ranks share the tokens of norms and residual stream, too."},
    {TE_KEY(parallel.virtual_stages), kBuiltIn, from_to(1, 1024),
     "Model chunks of each stage; more than 1 with `schedule: interleaved`."},
    {TE_KEY(parallel.pipeline_split), kBuiltIn, kAny,
     "Layers of each piece of the pipeline (each stage, or each of its virtual stages). `even`: as equal as "
     "they can be. `balanced`: as equal in time, so that the last one, which has the output layer and the "
     "loss, has fewer. A list such as `9,8,8,7`: so many, in the order of the model. Checkpoints go on under "
     "any."},
    {TE_KEY(parallel.schedule), kBuiltIn, kAny,
     "Order of forward and backward passes over the stages; `te-train --print-schedule` draws it."},
    {TE_KEY(parallel.tensor_overlap), kBuiltIn, from_to(1, 64),
     "Pieces along the tokens into which GEMMs next to a tensor-parallel collective are cut, so that one "
     "piece is sent while the next is computed. 1 is no overlap."},
    {TE_KEY(parallel.tensor_transport), kBuiltIn, kAny,
     "With `sequence`, on GPUs: what carries the tensor ranks' tokens. `nccl`: NCCL's kernels, which take "
     "multiprocessors. `copy`: the GPUs' copy engines, which take none and need tensor ranks on one host "
     "that "
     "can write each other's memory (NVLink). Sums are then added in FP32 in the order of the ranks."},
    {TE_KEY(parallel.shard), kBuiltIn, kAny,
     "Data parallelism: what each data rank keeps a share of. `optimizer`: main parameters and moments "
     "(ZeRO-1). `gradients`: also the layers' gradients, which are reduced after every microbatch (ZeRO-2). "
     "`parameters`: also the layers' values, which are gathered for every pass (ZeRO-3, FSDP). Each takes "
     "less memory and sends more than the one before. With one data rank there is nothing to share."},
    {TE_KEY(parallel.bucket_size), kBuiltIn, from_to(1, 1e12),
     "Data parallelism: parameters of one gradient reduction, at least."},
    {TE_KEY(parallel.overlap_grad_reduce), kBuiltIn, kAny,
     "Data parallelism: reduce a bucket of gradients as soon as the backward pass has finished it."},
    {TE_KEY(parallel.overlap_param_gather), kBuiltIn, kAny,
     "Data parallelism: gather new parameters while the next forward pass runs."},
    {TE_KEY(parallel.fp8_param_gather), kBuiltIn, kAny,
     "Data parallelism: each rank casts its share of the FP8 weights, and they travel in FP8, half the bytes "
     "of BF16. Same numbers; not run on GPUs yet. It applies to weights with one scale a tensor (`delayed`, "
     "`tensorwise`) all of "
     "whose GEMMs are in FP8, unless somebody reads their BF16 values: `parallel.shard: parameters`, "
     "`precision.fp8_keep_weights: none`, `precision.fp8_from_step` and `fp8_until_step`, `guard.every`, "
     "`logging.fp8_statistics_every`, `logging.generate_every`, `evaluation.every`."},
    {TE_KEY(parallel.overlap_receive), kBuiltIn, kAny,
     "Pipeline: a message from a neighbour may arrive while the pass before the one that needs it runs. It "
     "takes "
     "two more buffers of the residual stream's size, and NCCL's waiting kernels take up to 16 "
     "multiprocessors from "
     "the passes; without it they take none, and each message is waited for."},
    {TE_KEY(parallel.timeout_seconds), kBuiltIn, from_to(0, kMaxSteps),
     "Seconds after which a rank that waits for others ends the job and says for what and whom it waited; 0 "
     "is never."},

    {TE_KEY(training.micro_batch_size), kRequired, from_to(1, kMaxWidth), "Sequences per forward pass."},
    {TE_KEY(training.global_batch_size), kRequired, from_to(1, kMaxWidth),
     "Sequences per optimizer step. A multiple of `micro_batch_size`."},
    {TE_KEY(training.train_steps), kRequired, from_to(1, kMaxSteps), "Optimizer steps of the run."},
    {TE_KEY(training.seed), kBuiltIn, at_least(0),
     "Fixes the initial weights, the order of the data, dropout, and the rounding of moments.",
     "0 to 2^64 - 1"},
    {TE_KEY(training.recompute), kBuiltIn, kAny,
     "Activations recomputed in the backward pass: none, the cheap ones of each layer, or whole layers. "
     "Gradients are the same, bit for bit."},
    {TE_KEY(training.deterministic), kBuiltIn, kAny,
     "On a GPU, sums of attention's backward pass in a fixed order, so that a run repeats bit for bit. It "
     "changes nothing for te-train's own attention kernels, which always do so; where attention is cuDNN's "
     "([dtypes.md](dtypes.md#attention)) it costs about "
     "1 % of time, and memory of 2 * `micro_batch_size` * `num_attention_heads` * `seq_length`^2 bytes."},
    {TE_KEY(training.gemm_autotune), kBuiltIn, kAny,
     "On a GPU, how the algorithm of a GEMM is chosen: the library's first proposal; that of an "
     "earlier run (a file in `~/.cache/te-train`); that, or by timing some candidates, a few seconds a run "
     "at most; that, or by timing all, however long it takes. Runs that take the same choices from the file "
     "compute the same bits."},
    {TE_KEY(training.device), kBuiltIn, kAny, "`auto` is `cuda` when a usable GPU is found, else `cpu`."},
    {TE_KEY(training.device_index), kBuiltIn, from_to(0, 1023),
     "Which GPU, when `device` is or becomes `cuda`."},
    {TE_KEY(training.eval_interval), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between evaluations; 0 is never."},
    {TE_KEY(training.eval_microbatches), kBuiltIn, from_to(1, kMaxSteps), "Microbatches of one evaluation."},
    {TE_KEY(training.best_valid_set), "the first of data.valid", kAny,
     "The validation set by whose loss `checkpoint.keep_best` and early stopping go, and which is "
     "`valid_loss` "
     "in the logs.",
     "a name in `data.valid`"},
    {TE_KEY(training.early_stopping_patience), kBuiltIn, from_to(0, kMaxSteps),
     "Evaluations in a row without a gain after which the run ends, with exit code 0; 0 is never."},
    {TE_KEY(training.early_stopping_min_delta), kBuiltIn, at_least(0),
     "A validation loss is a gain when it is below the lowest one so far by more than this."},
    {TE_KEY(training.max_nonfinite_steps), kBuiltIn, from_to(1, kMaxSteps),
     "A step whose loss or gradient is not finite is skipped; the run stops after this many in a row. "
     "`fp16`: steps that "
     "lower the loss scale do not count."},
    {TE_KEY(training.loss_spikes), kBuiltIn, kAny,
     "What to do with a step whose loss is finite but far above those before it: nothing; say so; say so and "
     "leave its "
     "update out; say so, go back to the last good checkpoint, and leave the samples since then out (the run "
     "stops after "
     "`max_nonfinite_steps` of these)."},
    {TE_KEY(training.loss_spike_threshold), kBuiltIn, above(0),
     "How far: robust standard deviations (1.4826 times the median deviation) above the median of the last "
     "64 losses. Until "
     "16 are known: twice the loss of guessing, the logarithm of `model.vocab_size`."},
    {TE_KEY(training.z_loss_coefficient), kBuiltIn, at_least(0),
     "Adds this times the mean of log(Z)^2 to what is trained for, Z the sum of a token's exponentiated "
     "logits (PaLM: 1e-4, OLMo 2: 1e-5): it keeps logits from growing late in training. `loss` in the logs "
     "stays the cross entropy, `z_loss` is this term; validation has none. 0 is no z-loss."},

    {TE_KEY(optimizer.name), kBuiltIn, kAny,
     "`muon` orthogonalizes the momentum of the layers' matrices, as Moonlight does, and leaves all else "
     "(embeddings, output layer, norms, biases) to AdamW, with one learning rate and weight decay for both."},
    {TE_KEY(optimizer.lr), kBuiltIn, above(0), "Peak learning rate."},
    {TE_KEY(optimizer.min_lr), kBuiltIn, at_least(0), "Learning rate at the end of the decay. At most `lr`."},
    {TE_KEY(optimizer.warmup_steps), kBuiltIn, from_to(0, kMaxSteps), "Steps of linear warm-up."},
    {TE_KEY(optimizer.decay), kBuiltIn, kAny,
     "Shape after the warm-up; `wsd` stays at `lr` and falls only in the last `wsd_decay_steps`."},
    {TE_KEY(optimizer.decay_steps), "training.train_steps", from_to(1, kMaxSteps),
     "Step at which `min_lr` is reached, warm-up included."},
    {TE_KEY(optimizer.wsd_decay_steps), "a tenth of decay_steps, at least 1", from_to(1, kMaxSteps),
     "`wsd`: length of the final decay, in steps. At most `decay_steps`."},
    {TE_KEY(optimizer.weight_decay), kBuiltIn, at_least(0),
     "Decoupled weight decay of matrices; norms and biases have none."},
    {TE_KEY(optimizer.beta1), kBuiltIn, kFraction, "Decay of the first moment."},
    {TE_KEY(optimizer.beta2), kBuiltIn, kFraction, "Decay of the second moment."},
    {TE_KEY(optimizer.eps), kBuiltIn, above(0), "Added to the root of the second moment."},
    {TE_KEY(optimizer.clip_grad), kBuiltIn, at_least(0), "Largest global gradient norm; 0 is no clipping."},
    {TE_KEY(optimizer.main_grad_dtype), kBuiltIn, kAny,
     "Number format in which gradients are accumulated over microbatches and reduced over ranks."},
    {TE_KEY(optimizer.store_param_remainders), kBuiltIn, kAny,
     "Keep FP32 main parameters as the model's BF16 values and the 16 bits that these lack: 2 bytes per "
     "parameter "
     "less. One FP32 rounding in 131,072 differs, by one unit in the last place. Without effect in an FP32 "
     "model."},
    {TE_KEY(optimizer.exp_avg_dtype), kBuiltIn, kAny,
     "Number format of the first moments: 4, 2, or 1 byte per parameter and one per 128. `bf16` and `fp8` "
     "are "
     "rounded stochastically. A checkpoint with moments of another format is converted when it is loaded."},
    {TE_KEY(optimizer.exp_avg_sq_dtype), kBuiltIn, kAny,
     "The same of the second moments; `fp8` holds their roots."},
    {TE_KEY(optimizer.offload), kBuiltIn, kAny,
     "Keep what only the optimizer's step reads in page-locked host memory: `moments`, or `state`: main "
     "parameters, too. The step is made on the GPU, which each byte reaches and leaves once a step; no "
     "number changes (performance.md). `adamw` only."},
    {TE_KEY(optimizer.offload_buffer_mib), kBuiltIn, from_to(1, 65536),
     "Device memory in MiB, at most, through which offloaded state passes. What fits into it comes while the "
     "passes "
     "run, and leaves while those of the next step do."},
    {TE_KEY(optimizer.muon_momentum), kBuiltIn, kFraction,
     "`muon`: share of the momentum that a step keeps; the gradient is added to it whole."},
    {TE_KEY(optimizer.muon_nesterov), kBuiltIn, kAny,
     "`muon`: what is orthogonalized is the gradient plus `muon_momentum` times the new momentum, instead "
     "of that momentum."},
    {TE_KEY(optimizer.muon_ns_steps), kBuiltIn, from_to(1, 100), "`muon`: iterations of Newton-Schulz."},
    {TE_KEY(optimizer.muon_scale), kBuiltIn, above(0),
     "`muon`: an orthogonal update is multiplied by this times the root of its larger dimension, so that its "
     "elements have about this root mean square, as those of AdamW have: learning rates of AdamW fit."},

    {TE_KEY(data.train), kBuiltIn, kAny,
     "Training datasets, blended by weight (relative; they need not sum to 1). Required unless `synthetic`.",
     kSourcesRule},
    {TE_KEY(data.valid), kBuiltIn, kAny,
     "Validation datasets, blended by weight. Required when `training.eval_interval` is not 0. A mapping "
     "gives several sets, each with a loss of its own.",
     kSetsRule},
    {TE_KEY(data.synthetic), kBuiltIn, kAny,
     "Random tokens instead of datasets, for benchmarks; without validation."},
    {TE_KEY(data.format), kBuiltIn, kAny,
     "What a sample is: `pretrain` cuts a stream of documents; `instruct` packs whole conversations of "
     "datasets "
     "made by `te-data instruct`, with the loss on the responses."},
    {TE_KEY(data.document_mask), kBuiltIn, kAny,
     "Attention does not cross the documents (`instruct`: conversations) of a sample."},
    {TE_KEY(data.max_documents), kBuiltIn, from_to(1, kMaxWidth),
     "With `document_mask`: documents that a sample may hold, on average over a microbatch. On a GPU "
     "attention's "
     "memory and time grow with it."},
    {TE_KEY(data.eod_mask_loss), kBuiltIn, kAny,
     "`pretrain`: no loss on the first token of a document, which the end of another one does not foretell."},
    {TE_KEY(data.overlong), kBuiltIn, kAny,
     "`instruct`: conversations of more than `model.seq_length` + 1 tokens are cut to that length, or left "
     "out."},
    {TE_KEY(data.tokenizer), kBuiltIn, kAny,
     "What the datasets were tokenized with, as given to te-data: `bytes` (256 bytes and an end-of-document "
     "token), a tokenizer's file, or its folder. Its files are copied to `checkpoint.directory`, where "
     "te-generate and te-convert export find them; when empty, those are copied that the checkpoint of "
     "`init_from` or `resume` has.",
     "empty, `bytes` or a path"},
    {TE_KEY(data.check_tokenizer), kBuiltIn, kAny,
     "Refuse datasets whose companion (`PREFIX.meta.json`, written by te-data) says that another tokenizer "
     "than `tokenizer`, or than that of the first dataset, made them."},

    {TE_KEY(checkpoint.directory), "logging.directory/checkpoints", kAny, "Where checkpoints are written."},
    {TE_KEY(checkpoint.save_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between checkpoints; 0 is never."},
    {TE_KEY(checkpoint.save_last), kBuiltIn, kAny, "Save after the last step."},
    {TE_KEY(checkpoint.keep), kBuiltIn, from_to(0, 1000000),
     "Checkpoints that are kept: after a save the oldest are deleted, but never the latest nor the last good "
     "one; 0 "
     "keeps all."},
    {TE_KEY(checkpoint.keep_best), kBuiltIn, from_to(0, 1000000),
     "Checkpoints with the lowest losses of `training.best_valid_set`: an evaluation that is among them "
     "saves "
     "one, `keep` does not count them, and the file `best` beside `latest` names the best; 0 is none."},
    {TE_KEY(checkpoint.async), kBuiltIn, kAny,
     "Write checkpoints in the background: training waits for a copy to host memory only (12 bytes per "
     "parameter of the "
     "rank, where the host has them), not for the disk."},
    {TE_KEY(checkpoint.save_optimizer), kBuiltIn, kAny,
     "Save the optimizer's moments, two thirds of a checkpoint in FP32; without them a resumed run starts "
     "with "
     "moments of zero."},
    {TE_KEY(checkpoint.resume), kBuiltIn, kAny,
     "`auto` continues from the latest checkpoint of `directory` if there is one; a path continues from that "
     "checkpoint, or from the latest of that directory.",
     "`auto`, `never` or a path"},
    {TE_KEY(checkpoint.resume_fallback), kBuiltIn, kAny,
     "With `resume: auto`: where the newest checkpoint is damaged, go on from the one before it, with a "
     "warning; "
     "otherwise stop."},
    {TE_KEY(checkpoint.load_optimizer), kBuiltIn, kAny,
     "Resume the optimizer's moments; otherwise they start at zero."},
    {TE_KEY(checkpoint.init_from), "random initial weights", kAny,
     "Checkpoint (of any step, or made by `te-convert`) whose weights a new run starts with, at step 1 and "
     "with moments "
     "of zero; what `resume` finds comes first.",
     "a path"},

    {TE_KEY(logging.directory), "runs/NAME, NAME being the config file's name without .yaml", kAny,
     "Where the run writes its logs."},
    {TE_KEY(logging.every), kBuiltIn, from_to(1, kMaxSteps), "Steps between console lines and log records."},
    {TE_KEY(logging.csv), kBuiltIn, kAny, "Loss log inside `directory`; empty is none.",
     "a file name, or empty"},
    {TE_KEY(logging.jsonl), kBuiltIn, kAny, "Write `metrics.jsonl` inside `directory`."},
    {TE_KEY(logging.tensorboard), kBuiltIn, kAny,
     "Write TensorBoard's event files inside `directory`: the numbers of `metrics.jsonl`, FP8 health as "
     "histograms, and the config."},
    {TE_KEY(logging.fp8_stats_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between FP8 health records in `metrics.jsonl` and event files; 0 is never."},
    {TE_KEY(logging.fp8_statistics_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between records of what casting to FP8 does to every operand (`fp8_statistics.jsonl`, "
     "[fp8.md](fp8.md#statistics)): a forward and a backward pass of the step's first microbatch more. 0 is "
     "never."},
    {TE_KEY(logging.fp8_what_if), kBuiltIn, kAny,
     "With `fp8_statistics_every`: recipes whose casts of the same operands are recorded, too, also in BF16 "
     "runs.",
     "a list of `tensorwise`, `rowwise`, `blockwise`"},
    {TE_KEY(logging.loss_by_source), kBuiltIn, kAny,
     "Of training data that is a blend: the loss of each dataset, too, over the tokens since the last "
     "record."},
    {TE_KEY(logging.generate_every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between texts that the model makes of the prompts below, in `samples.jsonl` and on the console; "
     "0 is never. Needs `data.tokenizer`, and `parallel.virtual_stages` 1."},
    {TE_KEY(logging.generate_prompts), kBuiltIn, kAny, "Texts to go on from.",
     "a list of texts, or one text"},
    {TE_KEY(logging.generate_prompt_file), kBuiltIn, kAny, "A file with more of them, one a line.",
     "empty, or a path"},
    {TE_KEY(logging.generate_tokens), kBuiltIn, from_to(1, kMaxWidth), "Tokens for a prompt, at most."},
    {TE_KEY(logging.generate_temperature), kBuiltIn, from_to(0, 1000),
     "Logits are divided by it; 0 always takes the most probable token. The draws follow `training.seed`."},
    {TE_KEY(logging.generate_top_k), kBuiltIn, from_to(0, 1e7),
     "Draw among so many most probable tokens; 0 is all."},
    {TE_KEY(logging.generate_top_p), kBuiltIn, Range{.low = 0, .high = 1, .open_low = true},
     "Draw among the fewest most probable tokens whose probabilities reach this."},

    {TE_KEY(evaluation.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between evaluations on `tasks`, and one after the last step; 0 is never. Needs "
     "`data.tokenizer`, and "
     "`parallel.virtual_stages` 1."},
    {TE_KEY(evaluation.tasks), kBuiltIn, kAny,
     "Tasks as `te-generate evaluate` knows them, such as `[hellaswag, lambada_openai]`, or own ones: `NAME` "
     "for `NAME.jsonl` of `data`.",
     "a list of names, or one name"},
    {TE_KEY(evaluation.data), kBuiltIn, kAny, "The folder with the data of the tasks.", "empty, or a path"},
    {TE_KEY(evaluation.limit), kBuiltIn, from_to(0, kMaxSteps),
     "Only the first so many documents of each task; 0 is all."},
    {TE_KEY(evaluation.batch), kBuiltIn, from_to(1, kMaxWidth),
     "Documents that are judged at a time, at most. The cache of keys and values, which is planned for the "
     "whole run, grows with them; the results do not change but for rounding."},

    {TE_KEY(guard.every), kBuiltIn, from_to(0, kMaxSteps),
     "Steps between comparisons; 0 is none. Needs `precision.fp8`."},
    {TE_KEY(guard.compare_steps), kBuiltIn, from_to(1, 10000),
     "Steps of a comparison: taken in BF16, undone, and taken in FP8 with the same samples. Below `every`."},
    {TE_KEY(guard.action), kBuiltIn, kAny,
     "What to do where FP8 loses more than the spread of earlier comparisons allows: say so; say so and go "
     "on "
     "in BF16; say so, go back to where the comparison began, and go on from there in BF16."},
    {TE_KEY(guard.bf16_steps), kBuiltIn, from_to(1, kMaxSteps),
     "`bf16` and `rollback`: steps in BF16, before FP8 is tried again."},
    {TE_KEY(guard.threshold), kBuiltIn, above(0),
     "What is too much: robust standard deviations above the median of the last 16 gaps. With fewer than 4 "
     "known, `tolerance` alone counts."},
    {TE_KEY(guard.tolerance), kBuiltIn, at_least(0),
     "A share of the BF16 loss. A gap below it is never too much."},
    {TE_KEY(guard.validate), kBuiltIn, kAny,
     "Compare validation losses (`training.best_valid_set`) after the steps, too."},
    {TE_KEY(guard.test_outlier_step), kBuiltIn, from_to(0, kMaxSteps),
     "For tests: from this step on FP8 inputs of `linear_fc2` are scaled as if they held an outlier, which "
     "costs all "
     "other values their resolution. 0 is never."},
    {TE_KEY(guard.test_outlier_log2), kBuiltIn, from_to(1, 60),
     "For tests: the outlier is 2 to this power times as large as the largest value."},
});

#undef TE_KEY

}  // namespace

std::span<const Section> sections() {
  return kSections;
}

std::span<const Key> keys() {
  return kKeys;
}

const Key* find_key(std::string_view path) {
  for (const Key& key : kKeys) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

}  // namespace te::config
