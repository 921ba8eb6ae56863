// The configuration of a run: plain structs, one per section of the YAML file. Every key, its default and its rule are
// in one table (key_table.h), from which parsing, suggestions, to_yaml and docs/reference/configuration.md derive. In a
// Config from load_config or parse_config, all defaults are resolved, including those that depend on other keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/choices.h"
#include "core/dtype.h"
#include "core/parameter_id.h"

namespace te::config {

using te::ActivationKind;
using te::AmaxAlgo;
using te::BalanceScope;
using te::GemmAutotune;
using PipelineSchedule = te::ScheduleKind;
using te::RopeScaling;
using te::RopeScalingKind;
using te::RouterScore;

enum class Family : uint8_t { gpt, llama };
TE_NAMES(Family, "gpt", "llama")
enum class ComputeDType : uint8_t { bf16, fp32, fp16 };
TE_NAMES(ComputeDType, "bf16", "fp32", "fp16")
enum class GradDType : uint8_t { bf16, fp32 };
TE_NAMES(GradDType, "bf16", "fp32")
enum class Fp8Mode : uint8_t { off, e4m3, hybrid };
TE_NAMES(Fp8Mode, "off", "e4m3", "hybrid")
enum class Fp8Recipe : uint8_t { delayed, tensorwise, rowwise, blockwise, mxfp8, nvfp4 };
TE_NAMES(Fp8Recipe, "delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4")
enum class Fp8ScaleFormat : uint8_t { power_of_two, fp32 };
TE_NAMES(Fp8ScaleFormat, "power_of_two", "fp32")
/// Layouts of FP8 weights that are kept between passes; the others are created right before a GEMM reads them.
enum class Fp8KeptWeights : uint8_t { automatic, none, rowwise, both };
TE_NAMES(Fp8KeptWeights, "auto", "none", "rowwise", "both")
enum class Recompute : uint8_t { none, selective, full };
TE_NAMES(Recompute, "none", "selective", "full")
enum class LossSpikes : uint8_t { off, warn, skip, rollback };
TE_NAMES(LossSpikes, "off", "warn", "skip", "rollback")
enum class GuardAction : uint8_t { warn, bf16, rollback };
TE_NAMES(GuardAction, "warn", "bf16", "rollback")
enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
TE_NAMES(DeviceChoice, "auto", "cpu", "cuda")
enum class LrDecay : uint8_t { cosine, linear, constant, wsd };
TE_NAMES(LrDecay, "cosine", "linear", "constant", "wsd")
enum class PositionEmbedding : uint8_t { automatic, learned, rope };
TE_NAMES(PositionEmbedding, "auto", "learned", "rope")
enum class QkNorm : uint8_t { none, head, projection, head_no_gain };
TE_NAMES(QkNorm, "none", "head", "projection", "head_no_gain")
enum class NormPlacement : uint8_t { pre, post, both };
TE_NAMES(NormPlacement, "pre", "post", "both")
enum class OptimizerName : uint8_t { adamw, muon };
TE_NAMES(OptimizerName, "adamw", "muon")
enum class MomentDType : uint8_t { fp32, bf16, fp8 };
TE_NAMES(MomentDType, "fp32", "bf16", "fp8")
constexpr double bytes_of(MomentDType type) {
  return type == MomentDType::fp32 ? 4 : type == MomentDType::bf16 ? 2 : 1;
}
/// Which optimizer state is in host memory: none, the moments, or the moments and the FP32 master weights.
enum class Offload : uint8_t { none, moments, state };
TE_NAMES(Offload, "none", "moments", "state")
enum class AdapterType : uint8_t { none, lora };
TE_NAMES(AdapterType, "none", "lora")
/// How an adapter's A starts: with the variance of PEFT's default, or with standard deviation 1 / rank.
enum class AdapterInit : uint8_t { standard, gaussian };
TE_NAMES(AdapterInit, "default", "gaussian")
enum class DataFormat : uint8_t { pretrain, instruct };
TE_NAMES(DataFormat, "pretrain", "instruct")
enum class Overlong : uint8_t { truncate, drop };
TE_NAMES(Overlong, "truncate", "drop")
/// What data-parallel ranks shard: FP32 master weights and moments (optimizer), also gradients, also BF16 weights.
enum class Shard : uint8_t { optimizer, gradients, parameters };
TE_NAMES(Shard, "optimizer", "gradients", "parameters")
/// Transport of communication between GPUs: NCCL, whose kernels occupy SMs, or copy engines
/// (parallel/peer_transport.h). automatic: copy engines where they are measured to be faster
/// (ParallelConfig::tensor_copies()).
enum class Transport : uint8_t { automatic, nccl, copy };
TE_NAMES(Transport, "auto", "nccl", "copy")

using te::names_of, te::to_string, te::from_string;  // of the enums of core/choices.h

struct ModelConfig {
  Family family = Family::llama;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;  ///< gpt: default 4 * hidden_size; llama: width of one of fc1's two halves
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;  ///< default: num_attention_heads
  int64_t kv_channels = 0;       ///< width of one attention head; default: hidden_size / num_attention_heads
  int64_t vocab_size = 0;        ///< tokens of the tokenizer, before padding
  int64_t make_vocab_size_divisible_by = 128;
  int64_t seq_length = 0;
  int64_t max_position_embeddings = 0;  ///< gpt: rows of the position embedding; default: seq_length
  PositionEmbedding position_embedding = PositionEmbedding::automatic;  ///< gpt: learned; llama: rope
  double rope_theta = 10000.0;
  double rope_local_theta = 0.0;  ///< layers with a window, without scaling; 0: rope_theta with scaling
  double rotary_percent = 1.0;    ///< fraction of a head's pairs that are rotated, see rotary_pairs()
  RopeScaling rope_scaling;
  double norm_epsilon = 1e-5;
  bool tie_word_embeddings = false;  ///< the loader's default: true for gpt, false for llama
  bool add_qkv_bias = false;         ///< llama; gpt has a bias in every linear
  bool add_proj_bias = false;        ///< llama: bias in linear_proj
  bool add_mlp_bias = false;         ///< llama: bias in linear_fc1 and linear_fc2
  ActivationKind activation = ActivationKind::automatic;  ///< gpt: gelu (tanh approximation); llama: swiglu
  QkNorm qk_norm = QkNorm::none;                          ///< RMSNorm of queries and keys, before RoPE
  bool norm_gain = true;                                  ///< llama: RMSNorms of hidden states have gains
  bool embedding_norm = false;                            ///< llama: RMSNorm without gain after the embedding
  NormPlacement norm_placement = NormPlacement::pre;      ///< before the sublayers, on their outputs, or both
  bool layernorm_zero_centered_gamma = false;             ///< RMSNorm multiplies by 1 + gain
  bool scale_embedding = false;  ///< multiply the token embedding by sqrt(hidden_size)
  double query_pre_attn_scalar =
      0.0;                         ///< attention scores are divided by its square root; default: kv_channels
  double swiglu_clamp = 0.0;       ///< swiglu: bound of gate and up, kernels/activation/activation.h; 0: none
  bool parallel_residual = false;  ///< attention and MLP read the same residual stream and add to it together
  int64_t sliding_window = 0;      ///< tokens that a token attends to, itself included; 0: all preceding ones
  std::string window_pattern;      ///< which layers have the window (window_pattern.h); empty: all
  double hidden_dropout = 0.0;     ///< gpt: of the embedding and of each sublayer's output
  double attention_dropout = 0.0;
  double final_logit_softcapping = 0.0;  ///< logits become cap * tanh(logits / cap); 0: no cap
  double init_method_std = 0.02;
  double embedding_init_method_std = 0.0;  ///< without weight decay; 0: init_method_std with weight decay
  std::vector<std::string> zero_init;      ///< kinds of linear layers that start with weights of 0

  // Mixture of experts, llama only. Layers without experts have an MLP of ffn_hidden_size.
  int64_t num_moe_experts = 0;                      ///< 0: none
  int64_t moe_router_topk = 2;                      ///< experts per token
  int64_t moe_ffn_hidden_size = 0;                  ///< of an expert; default: ffn_hidden_size
  int64_t moe_shared_expert_intermediate_size = 0;  ///< of an expert that all tokens use; 0: none
  bool moe_shared_expert_gate = false;              ///< a sigmoid gate per token (Qwen2-MoE)
  int64_t moe_layer_freq = 1;                       ///< every n-th layer has experts, from layer 0
  int64_t first_k_dense = 0;                        ///< the first layers have no experts
  RouterScore moe_router_score_function = RouterScore::softmax;
  bool moe_router_norm_topk_prob = true;        ///< probabilities of a token's experts sum to 1
  double moe_router_topk_scaling_factor = 1.0;  ///< of the probabilities
  int64_t moe_router_num_groups = 1, moe_router_group_topk = 1;  ///< group-limited selection
  BalanceScope moe_router_load_balancing_type = BalanceScope::microbatch;
  bool moe_router_force_load_balancing = false;  ///< for benchmarks
  double moe_aux_loss_coeff = 0.0;
  double moe_z_loss_coeff = 0.0;
  double moe_expert_capacity_factor = 0.0;  ///< 0: no capacity
  bool moe_router_enable_expert_bias =
      false;                                  ///< balances experts by a bias of their scores in the selection
  double moe_router_bias_update_rate = 1e-3;  ///< of the bias, per step

  /// Rows of the embedding and the output layer: vocab_size rounded up to make_vocab_size_divisible_by.
  int64_t padded_vocab_size() const;
  /// Raises make_vocab_size_divisible_by if needed, so that all tensor-parallel ranks have the same number of rows.
  void pad_vocabulary_for(int64_t tensor_ranks);
  /// Width of linear_qkv's output: (num_attention_heads + 2 * num_query_groups) * kv_channels.
  int64_t qkv_width() const { return (num_attention_heads + 2 * num_query_groups) * kv_channels; }
  /// Width of the attention output, linear_proj's input: num_attention_heads * kv_channels.
  int64_t attention_width() const { return num_attention_heads * kv_channels; }
  /// Width of linear_fc1's output.
  int64_t fc1_width() const { return (gated() ? 2 : 1) * ffn_hidden_size; }
  bool layer_norm() const { return family == Family::gpt; }  ///< LayerNorm, else RMSNorm
  bool rotary() const {
    return position_embedding == PositionEmbedding::rope ||
           (position_embedding == PositionEmbedding::automatic && family == Family::llama);
  }
  bool qkv_bias() const { return family == Family::gpt || add_qkv_bias; }
  bool proj_bias() const { return family == Family::gpt || add_proj_bias; }
  bool mlp_bias() const { return family == Family::gpt || add_mlp_bias; }
  /// How many of the kv_channels / 2 pairs (i, i + kv_channels / 2) of an attention head are rotated: the first ones.
  int64_t rotary_pairs() const;
  bool gated() const;  ///< whether fc1's halves are gate and up
  bool qk_norm_gain() const { return qk_norm == QkNorm::head || qk_norm == QkNorm::projection; }
  bool starts_with_zeros(LinearKind kind) const;  ///< zero_init
  /// Whether layer `layer` (from 0) has the window, even if no sequence is longer than it.
  bool window_in(int64_t layer) const;
  bool has_experts(int64_t layer) const {
    return num_moe_experts > 0 && layer >= first_k_dense && layer % moe_layer_freq == 0;
  }
  /// Elements of the weights of a layer's feed-forward part, without biases: all of them, or those that one token uses.
  int64_t feed_forward_weights(int64_t layer, bool active) const;
  /// The config of one layer: without the window if the layer has none, and without experts likewise.
  ModelConfig of_layer(int64_t layer) const;
  /// Whether layers with a window have different rotary frequencies.
  bool local_rope() const { return sliding_window != 0 && rope_local_theta != 0.0; }
  /// The model with the rotary frequencies of layers with a window in all layers.
  ModelConfig with_local_rope() const;
  /// Factor of the attention scores.
  double softmax_scale() const;
  /// Whether sequences are longer than the window.
  bool windowed() const { return sliding_window != 0 && sliding_window < seq_length; }
  /// Maximum number of tokens that a token attends to: seq_length or the window.
  int64_t attention_span() const { return windowed() ? sliding_window : seq_length; }
  double embedding_init_std() const {
    return embedding_init_method_std == 0.0 ? init_method_std : embedding_init_method_std;
  }
};

struct PrecisionConfig {
  ComputeDType dtype = ComputeDType::bf16;
  bool tf32 = false;  ///< fp32 on a GPU: GEMMs use TF32
  /// fp16 (train/loss_scaler.h): a fixed loss scale; 0: dynamic loss scaling.
  double loss_scale = 0.0;
  double initial_loss_scale = 65536.0;
  Fp8Mode fp8 = Fp8Mode::off;
  Fp8Recipe fp8_recipe = Fp8Recipe::delayed;
  Fp8ScaleFormat fp8_scale_format = Fp8ScaleFormat::power_of_two;  ///< tensorwise, rowwise and blockwise
  Fp8KeptWeights fp8_keep_weights = Fp8KeptWeights::automatic;     ///< see fp8_kept_weights()
  std::vector<std::string> nvfp4_parts = {"blocks", "hadamard", "stochastic"};
  int64_t amax_history_len = 1024;
  AmaxAlgo amax_compute_algo = AmaxAlgo::max;
  int64_t margin = 0;
  bool fp8_recast = true;  ///< delayed: requantize tensors that overflow the scale, with their current scale
  int64_t first_layers_bf16 = 0;
  int64_t last_layers_bf16 = 0;
  std::string overrides;          ///< rules, see precision_overrides.h
  bool fp8_output_layer = false;  ///< FP8 GEMMs in the output layer, too
  bool fp8_calibrate = false;     ///< with fp8 off: record the amaxes of an FP8 run
  int64_t fp8_from_step = 0;      ///< the first FP8 step; 0: step 1
  int64_t fp8_until_step = 0;     ///< the last FP8 step; 0: the last step of the run
  bool mx_gemms = false;          ///< not a key: the GPU multiplies MXFP8 and NVFP4 (for_device())

  /// Whether an FP8 run executes step `step` (from 1) in FP8; the other steps run in `dtype`.
  bool fp8_in_step(int64_t step) const {
    return step >= fp8_from_step && (fp8_until_step == 0 || step <= fp8_until_step);
  }
};

/// The parallel layout of a job. The data-parallel size is ranks / (tensor * context * pipeline). Expert-parallel ranks
/// are consecutive context- and data-parallel ranks.
struct ParallelConfig {
  int64_t ranks = 0;  ///< ranks of the job that the config is intended for; 0: the minimum of the layout
  int64_t tensor = 1;
  int64_t context = 1;  ///< ranks that divide the tokens of every sequence
  int64_t pipeline = 1;
  int64_t expert = 1;                ///< ranks that divide the experts of every layer
  double moe_dispatch_factor = 2.0;  ///< rows per round of expert dispatch, relative to a balanced load
  bool sequence = false;       ///< sequence parallelism: TP ranks also shard norms and the residual stream
  int64_t virtual_stages = 1;  ///< model chunks per pipeline stage
  std::string pipeline_split = "even";  ///< layers of each model chunk: config/pipeline_split.h
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  /// Number of token chunks into which a GEMM next to a tensor-parallel collective is divided, so that the collective
  /// of one chunk overlaps the GEMM of the next. 1: no overlap.
  int64_t tensor_overlap = 1;
  Transport transport = Transport::automatic;
  Shard shard = Shard::optimizer;    ///< what data-parallel ranks shard
  int64_t bucket_size = 40'000'000;  ///< minimum number of parameters of one gradient reduction
  int64_t timeout_seconds = 600;     ///< maximum time that a rank waits for others; 0: no limit

  /// The fewest ranks of the layout.
  int64_t model_ranks() const { return std::max<int64_t>(1, std::lcm(tensor * context, expert) * pipeline); }
  /// Whether copy engines carry the tokens of sequence parallelism. With `auto`: if GEMMs are split into chunks, which
  /// pays only with copy engines, and both transports support the number of chunks, so that a group that copy engines
  /// cannot reach uses NCCL.
  bool tensor_copies() const {
    const bool fits = tensor % tensor_overlap == 0 || tensor_overlap % tensor == 0;
    return tensor > 1 && sequence &&
           (transport == Transport::copy ||
            (transport == Transport::automatic && tensor_overlap > 1 && fits));
  }
  /// `ranks`, rounded up to whole model replicas.
  int64_t intended_ranks() const {
    const int64_t copies = (ranks + model_ranks() - 1) / model_ranks();
    return (copies > 0 ? copies : 1) * model_ranks();
  }
};

struct TrainingConfig {
  int64_t micro_batch_size = 0;   ///< sequences per forward pass
  int64_t global_batch_size = 0;  ///< sequences per optimizer step
  int64_t train_steps = 0;
  uint64_t seed = 1234;
  Recompute recompute = Recompute::none;
  bool deterministic = true;  ///< on a GPU: fixed summation order in attention's backward pass
  GemmAutotune gemm_autotune = GemmAutotune::on;  ///< kernels/gemm/gemm.h
  DeviceChoice device = DeviceChoice::automatic;
  int64_t eval_interval = 0;         ///< steps between evaluations; 0: never
  int64_t eval_microbatches = 10;    ///< microbatches of one evaluation
  int64_t max_nonfinite_steps = 10;  ///< consecutive skipped steps, or rollbacks, after which training stops
  LossSpikes loss_spikes = LossSpikes::warn;  ///< train/loss_spikes.h
  double z_loss_coefficient = 0.0;            ///< kernels/cross_entropy/cross_entropy.h; 0: no z-loss
  double neftune_noise_alpha = 0.0;           ///< model/embedding.h; 0: no noise
  int64_t early_stopping_patience =
      0;  ///< evaluations without improvement after which the run ends; 0: never
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  double min_lr = 3e-5;  ///< the loader's default: lr / 10
  int64_t warmup_steps = 0;
  LrDecay decay = LrDecay::cosine;
  int64_t decay_steps = 0;      ///< default: train_steps
  int64_t wsd_decay_steps = 0;  ///< default: decay_steps / 10, at least 1
  double weight_decay = 0.1;
  std::vector<std::string> groups;  ///< rules, see update_rules.h
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip_grad = 1.0;                         ///< 0: no clipping
  GradDType main_grad_dtype = GradDType::fp32;    ///< of gradient accumulation and reduction
  bool store_param_remainders = false;            ///< master weights are BF16 weights plus 16-bit remainders
  MomentDType exp_avg_dtype = MomentDType::fp32;  ///< in memory and in checkpoints
  MomentDType exp_avg_sq_dtype = MomentDType::fp32;
  Offload offload = Offload::none;
  double muon_momentum = 0.95;  ///< muon: optim/muon.h
};

/// Low-rank adapters of linear layers whose own weights are not trained: config/adapter.h.
struct AdapterConfig {
  AdapterType type = AdapterType::none;
  int64_t rank = 16;
  double alpha = 32.0;
  double dropout = 0.0;
  std::vector<std::string> target = {"all-linear"};
  bool use_rslora = false;
  AdapterInit init = AdapterInit::standard;
  std::string
      init_from;  ///< adapter checkpoint or PEFT folder with the initial adapter; empty: as `init` says
  bool train_norms = false;
  bool train_embeddings = false;  ///< and the output layer

  bool on() const { return type != AdapterType::none; }
  /// Factor of the adapter's output.
  double scale() const;
};

struct DataSource {
  double weight = 1.0;  ///< relative; weights need not sum to 1
  std::string prefix;   ///< PREFIX.bin and PREFIX.idx, relative to the working directory
  bool operator==(const DataSource&) const = default;
};

/// Datasets that are evaluated together under one name. A plain list in YAML is the set "valid".
struct ValidationSet {
  std::string name = "valid";
  std::vector<DataSource> sources;
  bool operator==(const ValidationSet&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;
  std::vector<ValidationSet> valid;
  bool synthetic = false;  ///< random tokens, for benchmarks
  DataFormat format = DataFormat::pretrain;
  bool document_mask = false;              ///< attention does not cross documents (conversations)
  int64_t max_documents = 32;              ///< with document_mask: per sample, averaged over a microbatch
  bool eod_mask_loss = false;              ///< pretrain: no loss on the first token of a document
  Overlong overlong = Overlong::truncate;  ///< instruct: conversations of more than seq_length + 1 tokens
  std::string tokenizer;                   ///< as passed to te-data; copied to checkpoints
  bool check = true;  ///< refuse datasets of another tokenizer and, on resume, datasets that have changed

  /// The validation set whose loss selects the best checkpoint and stops early: the first; empty if there is none.
  std::string deciding_set() const { return valid.empty() ? "" : valid.front().name; }
};

struct CheckpointConfig {
  std::string directory;         ///< default: logging.directory + "/checkpoints"
  int64_t save_every = 0;        ///< steps; 0: never
  bool save_last = true;         ///< save after the last step
  int64_t keep = 0;              ///< number of newest checkpoints that are kept; 0: all
  int64_t keep_best = 0;         ///< additionally kept: those with the lowest validation losses; 0: none
  bool async = true;             ///< write in the background, from a copy in host memory
  bool save_optimizer = true;    ///< save the moments, too
  std::string resume = "never";  ///< "never", "auto" (newest checkpoint of directory, if any), or a path
  bool load_optimizer = true;    ///< load the moments on resume, too
  std::string init_from;         ///< checkpoint with the initial weights of a new run; empty: random weights
};

struct LoggingConfig {
  std::string directory;                 ///< default: "runs/" + Config::name
  int64_t every = 1;                     ///< steps between console lines and log records
  bool tensorboard = true;               ///< an event file inside directory
  int64_t fp8_stats_every = 10;          ///< steps between FP8 health records; 0: off
  int64_t fp8_statistics_every = 0;      ///< steps between quantization statistics of every operand; 0: off
  std::vector<std::string> fp8_what_if;  ///< additional recipes whose quantization statistics are recorded
  bool loss_by_source = false;           ///< log the loss of each dataset of a blend, too
  int64_t generate_every = 0;            ///< steps between generated samples; 0: none
  std::vector<std::string> generate_prompts;
  int64_t generate_tokens = 64;       ///< maximum number of tokens per prompt
  double generate_temperature = 0.0;  ///< 0: greedy decoding
};

/// Tasks on which the model is evaluated during training: train/task_results.h.
struct EvaluationConfig {
  int64_t every = 0;               ///< steps between evaluations; 0: none
  std::vector<std::string> tasks;  ///< as for te-generate evaluate --tasks
  std::string data;                ///< the folder with the tasks' data
  int64_t limit = 0;               ///< maximum number of documents per task; 0: all
  int64_t batch = 32;  ///< maximum number of documents per batch; determines the size of the KV cache
};

/// Comparison of an FP8 run with BF16 steps during training: train/guard.h.
struct GuardConfig {
  int64_t every = 0;          ///< steps between comparisons with BF16; 0: none
  int64_t compare_steps = 4;  ///< steps of a comparison, executed in both precisions
  GuardAction action = GuardAction::warn;
  int64_t bf16_steps = 100;  ///< BF16 steps after a gap above the limit
  double tolerance = 0.005;  ///< gaps below this fraction of the loss are ignored
};

struct Config {
  std::string name;  ///< stem of the config file; not a key
  ModelConfig model;
  PrecisionConfig precision;
  ParallelConfig parallel;
  TrainingConfig training;
  OptimizerConfig optimizer;
  AdapterConfig adapter;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  EvaluationConfig evaluation;
  GuardConfig guard;
  /// Set by code; not a key. The parameters that are trained; empty: all, or those that `adapter` says.
  std::function<bool(const ParameterId&)> trains{};
};

/// Reads a file, applies overrides ("model.num_layers=4"), resolves defaults and validates. UserError, in one line,
/// with file, line and key (or the override).
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

/// Likewise for a text; source_name replaces the file in errors, and its stem is Config::name.
Config parse_config(const std::string& yaml_text, const std::string& source_name,
                    const std::vector<std::string>& overrides = {});

/// Resolves values that are 0, empty or automatic and have a default that depends on other keys (see the comments
/// above). For configs that are created in code; the loader calls it.
void resolve_defaults(Config& config);

/// The type of tensors in a precision.dtype.
DType dtype_of(ComputeDType dtype);

/// precision.fp8_keep_weights, with `auto` resolved.
Fp8KeptWeights fp8_kept_weights(const Config& config);

/// Whether an FP8 run can have BF16 steps, too (by schedule, or for its guard), so that operands need memory for both.
bool mixes_precisions(const Config& config);

/// Whether the BF16 values of FP8 weights are read: by generated samples, evaluation tasks, or BF16 steps.
bool reads_values_of_fp8_weights(const Config& config);

/// Whether data-parallel ranks quantize their shards of updated weights and gather FP8 bytes instead of BF16 values:
/// if the BF16 values of other ranks' shards are not read.
bool gathers_fp8_weights(const Config& config);

/// Checks every range and every combination of keys. UserError with key names and arithmetic. Device-dependent rules
/// are checked only if training.device names a device.
void validate(const Config& config);

/// Checks the rules of a device; for training.device auto, after the device is chosen.
void validate_for_device(const Config& config, bool cuda);

/// The effective config as YAML; parse_config(to_yaml(c)) equals c.
std::string to_yaml(const Config& config);

/// A key whose value differs between two configs, as YAML.
struct ChangedKey {
  std::string path, before, now;
};

/// The keys whose values in `before`, the output of to_yaml (of this or another version), differ from `now`.
std::vector<ChangedKey> changed_keys(const std::string& before, const Config& now);

/// The keys of such a text ("model.num_layers") with their values.
std::map<std::string, std::string, std::less<>> stored_values(const std::string& yaml);

/// The output of to_yaml of this or an earlier version as this version's: without removed keys.
std::string upgrade_stored(const std::string& yaml);

/// UserError if the run that wrote such a text cannot be continued with the same computation, because a removed key had
/// another value than what this version does.
void check_resumable(const std::string& yaml);

/// The value of a string key in such a text; empty if it is missing.
std::string string_in(const std::string& yaml, std::string_view path);

/// The required keys, and the keys whose value differs from their default; in the table's order.
struct SetKey {
  std::string_view section, name;
  std::string value;  ///< as YAML
};
std::vector<SetKey> explicit_keys(const Config& config);

/// One line per key: name, type with the allowed values, default, meaning.
std::string describe_keys();

/// The tables of docs/reference/configuration.md.
std::string config_reference_markdown();

}  // namespace te::config
