// The configuration of a run: plain structs, one per section of the YAML file. Every key, its default and its
// rule are in one table (key_table.h), from which parsing, suggestions, to_yaml and docs/reference/configuration.md
// all derive. A Config that came from load_config or parse_config holds no "unset" value: defaults that
// depend on other keys have been filled in, so readers never ask "or else?".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace te::config {

enum class Family : uint8_t { gpt, llama };
enum class ComputeDType : uint8_t { bf16, fp32, fp16 };
enum class GradDType : uint8_t { bf16, fp32 };
enum class Fp8Mode : uint8_t { off, e4m3, hybrid };
enum class Fp8Recipe : uint8_t { delayed, tensorwise, rowwise, blockwise };
enum class Fp8ScaleFormat : uint8_t { power_of_two, fp32 };
/// Forms of FP8 weights that live from pass to pass; the others are made right before a GEMM reads them.
enum class Fp8KeptWeights : uint8_t {
  automatic,
  none,
  rowwise,
  both
};  ///< automatic is spelled "auto" in YAML
enum class AmaxAlgo : uint8_t { max, most_recent };
enum class Recompute : uint8_t { none, selective, full };
enum class GemmAutotune : uint8_t { off, cached, on, full };
enum class LossSpikes : uint8_t { off, warn, skip, rollback };
enum class GuardAction : uint8_t { warn, bf16, rollback };
enum class DeviceChoice : uint8_t { automatic, cpu, cuda };  ///< automatic is spelled "auto" in YAML
enum class LrDecay : uint8_t { cosine, linear, constant, wsd };
enum class RopeScaling : uint8_t { none, linear, llama3, yarn };
enum class PositionEmbedding : uint8_t { automatic, learned, rope };  ///< automatic is spelled "auto" in YAML
enum class Activation : uint8_t { automatic, swiglu, gelu, gelu_exact, relu, silu, geglu };
enum class QkNorm : uint8_t { none, head, projection };
enum class NormPlacement : uint8_t { pre, post, both };
enum class OptimizerName : uint8_t { adamw, muon };
enum class MomentDType : uint8_t { fp32, bf16, fp8 };
/// What of the optimizer's state is in host memory: nothing, the moments, or main parameters, too.
enum class Offload : uint8_t { none, moments, state };
enum class DataFormat : uint8_t { pretrain, instruct };
enum class Overlong : uint8_t { truncate, drop };
/// What the data ranks share beside the step's samples: main parameters and moments in any case, then gradients, then
/// values.
enum class Shard : uint8_t { optimizer, gradients, parameters };
/// What carries messages of a kind on GPUs: NCCL, whose kernels take multiprocessors, or the copy engines
/// (parallel/peer_transport.h, peer_links.h).
enum class Transport : uint8_t { nccl, copy };
enum class PipelineSchedule : uint8_t { gpipe, one_f_one_b, interleaved, zero_bubble };  ///< "1f1b" in YAML

std::string_view to_string(Family value);
std::string_view to_string(ComputeDType value);
std::string_view to_string(GradDType value);
std::string_view to_string(Fp8Mode value);
std::string_view to_string(Fp8Recipe value);
std::string_view to_string(Fp8ScaleFormat value);
std::string_view to_string(Fp8KeptWeights value);
std::string_view to_string(AmaxAlgo value);
std::string_view to_string(Recompute value);
std::string_view to_string(GemmAutotune value);
std::string_view to_string(LossSpikes value);
std::string_view to_string(GuardAction value);
std::string_view to_string(DeviceChoice value);
std::string_view to_string(LrDecay value);
std::string_view to_string(RopeScaling value);
std::string_view to_string(PositionEmbedding value);
std::string_view to_string(Activation value);
std::string_view to_string(QkNorm value);
std::string_view to_string(NormPlacement value);
std::string_view to_string(OptimizerName value);
std::string_view to_string(MomentDType value);
std::string_view to_string(Offload value);
std::string_view to_string(DataFormat value);
std::string_view to_string(Overlong value);
std::string_view to_string(Shard value);
std::string_view to_string(Transport value);
std::string_view to_string(PipelineSchedule value);

/// The inverse of to_string; false (and value untouched) when the text names no value.
bool from_string(std::string_view text, Family& value);
bool from_string(std::string_view text, ComputeDType& value);
bool from_string(std::string_view text, GradDType& value);
bool from_string(std::string_view text, Fp8Mode& value);
bool from_string(std::string_view text, Fp8Recipe& value);
bool from_string(std::string_view text, Fp8ScaleFormat& value);
bool from_string(std::string_view text, Fp8KeptWeights& value);
bool from_string(std::string_view text, AmaxAlgo& value);
bool from_string(std::string_view text, Recompute& value);
bool from_string(std::string_view text, GemmAutotune& value);
bool from_string(std::string_view text, LossSpikes& value);
bool from_string(std::string_view text, GuardAction& value);
bool from_string(std::string_view text, DeviceChoice& value);
bool from_string(std::string_view text, LrDecay& value);
bool from_string(std::string_view text, RopeScaling& value);
bool from_string(std::string_view text, PositionEmbedding& value);
bool from_string(std::string_view text, Activation& value);
bool from_string(std::string_view text, QkNorm& value);
bool from_string(std::string_view text, NormPlacement& value);
bool from_string(std::string_view text, OptimizerName& value);
bool from_string(std::string_view text, MomentDType& value);
bool from_string(std::string_view text, Offload& value);
bool from_string(std::string_view text, DataFormat& value);
bool from_string(std::string_view text, Overlong& value);
bool from_string(std::string_view text, Shard& value);
bool from_string(std::string_view text, Transport& value);
bool from_string(std::string_view text, PipelineSchedule& value);

struct ModelConfig {
  Family family = Family::llama;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t ffn_hidden_size = 0;  ///< gpt: 4 * hidden_size when absent; llama: width of one of fc1's two halves
  int64_t num_attention_heads = 0;
  int64_t num_query_groups = 0;  ///< num_attention_heads when absent
  int64_t kv_channels = 0;       ///< width of one head; hidden_size / num_attention_heads when absent
  int64_t vocab_size = 0;        ///< tokens of the tokenizer, before padding
  int64_t make_vocab_size_divisible_by = 128;
  int64_t seq_length = 0;
  int64_t max_position_embeddings = 0;  ///< gpt: rows of the position table; seq_length when absent
  PositionEmbedding position_embedding = PositionEmbedding::automatic;  ///< gpt: learned; llama: rope
  double rope_theta = 10000.0;
  double rope_local_theta = 0.0;  ///< of layers with a window, unscaled; rope_theta and scaling when absent
  double rotary_percent = 1.0;    ///< share of a head's pairs that turn, see rotary_pairs()
  /// How the rotary frequencies of a pretrained model were changed for longer sequences; the formulas are in
  /// kernels/rope/rope.h, where the keys' names without `rope_scaling_` say which kind reads them.
  RopeScaling rope_scaling = RopeScaling::none;
  double rope_scaling_factor = 8.0;
  double rope_scaling_low_freq_factor = 1.0;
  double rope_scaling_high_freq_factor = 4.0;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  double rope_scaling_beta_fast = 32.0;
  double rope_scaling_beta_slow = 1.0;
  double rope_scaling_attention_factor = 0.0;  ///< 0: 0.1 ln(rope_scaling_factor) + 1
  bool rope_scaling_truncate = true;
  double norm_epsilon = 1e-5;
  bool tie_word_embeddings = false;               ///< the loader's default: true for gpt, false for llama
  bool add_qkv_bias = false;                      ///< llama; gpt has a bias in every linear
  bool add_proj_bias = false;                     ///< llama: in linear_proj
  bool add_mlp_bias = false;                      ///< llama: in linear_fc1 and linear_fc2
  Activation activation = Activation::automatic;  ///< gpt: gelu, in its tanh form; llama: swiglu
  QkNorm qk_norm = QkNorm::none;                  ///< RMSNorm of queries and keys, before the rotation
  NormPlacement norm_placement =
      NormPlacement::pre;                      ///< in front of the sublayers, on their outputs, or both
  bool layernorm_zero_centered_gamma = false;  ///< RMSNorm multiplies by 1 + gain
  bool scale_embedding = false;                ///< the token embedding is multiplied by sqrt(hidden_size)
  double query_pre_attn_scalar = 0.0;  ///< scores are divided by its square root; kv_channels when absent
  double swiglu_clamp = 0.0;       ///< swiglu: bound of gate and up, kernels/activation/activation.h; 0: none
  bool parallel_residual = false;  ///< attention and MLP read the same stream, and their sum joins it
  int64_t sliding_window = 0;   ///< a token attends to the last so many, itself included; 0: to all before it
  std::string window_pattern;   ///< which layers have the window (window_pattern.h); empty: all
  double hidden_dropout = 0.0;  ///< gpt
  double embedding_dropout = -1.0;  ///< gpt; hidden_dropout when absent (below 0)
  double attention_dropout = 0.0;
  double init_method_std = 0.02;
  double embedding_init_method_std = 0.0;  ///< embedding, without weight decay; 0: init_method_std, with it

  /// Rows of the embedding and head: vocab_size rounded up to make_vocab_size_divisible_by.
  int64_t padded_vocab_size() const;
  /// Raises make_vocab_size_divisible_by where it must be: tensor ranks hold equally many rows.
  void pad_vocabulary_for(int64_t tensor_ranks);
  /// Width of linear_qkv's output: (num_attention_heads + 2 * num_query_groups) * kv_channels.
  int64_t qkv_width() const { return (num_attention_heads + 2 * num_query_groups) * kv_channels; }
  /// Width of the attention output, linear_proj's input: num_attention_heads * kv_channels.
  int64_t attention_width() const { return num_attention_heads * kv_channels; }
  /// Width of linear_fc1's output: ffn_hidden_size for gpt, both halves of SwiGLU for llama.
  int64_t fc1_width() const { return family == Family::llama ? 2 * ffn_hidden_size : ffn_hidden_size; }
  bool layer_norm() const { return family == Family::gpt; }  ///< LayerNorm, else RMSNorm
  bool rotary() const {
    return position_embedding == PositionEmbedding::rope ||
           (position_embedding == PositionEmbedding::automatic && family == Family::llama);
  }
  bool qkv_bias() const { return family == Family::gpt || add_qkv_bias; }
  bool proj_bias() const { return family == Family::gpt || add_proj_bias; }
  bool mlp_bias() const { return family == Family::gpt || add_mlp_bias; }
  /// Of the kv_channels / 2 pairs (i, i + kv_channels / 2) of a head the first so many turn.
  int64_t rotary_pairs() const;
  /// fc1's halves are gate and up.
  bool gated() const { return activation == Activation::swiglu || activation == Activation::geglu; }
  /// Attention of a layer (from 0) has the window, whether or not a sequence is longer.
  bool window_in(int64_t layer) const;
  /// The model as one layer sees it: without a window where it has none.
  ModelConfig of_layer(int64_t layer) const;
  /// Layers with a window have rotary frequencies of their own.
  bool local_rope() const { return sliding_window != 0 && rope_local_theta != 0.0; }
  /// The model with these frequencies in all layers.
  ModelConfig with_local_rope() const;
  /// What the scores of attention are multiplied by.
  double softmax_scale() const;
  /// A sequence is longer than the window.
  bool windowed() const { return sliding_window != 0 && sliding_window < seq_length; }
  /// Tokens that a token attends to at most: seq_length or the window.
  int64_t attention_span() const { return windowed() ? sliding_window : seq_length; }
  double embedding_dropout_rate() const {
    return embedding_dropout < 0.0 ? hidden_dropout : embedding_dropout;
  }
  double embedding_init_std() const {
    return embedding_init_method_std == 0.0 ? init_method_std : embedding_init_method_std;
  }
};

struct PrecisionConfig {
  ComputeDType dtype = ComputeDType::bf16;
  bool tf32 = false;  ///< fp32 on a GPU: GEMMs multiply in TF32
  /// fp16: train/loss_scaler.h. A fixed scale, or 0: the four below.
  double loss_scale = 0.0;
  double initial_loss_scale = 65536.0;
  double min_loss_scale = 1.0;
  int64_t loss_scale_window = 2000;
  int64_t hysteresis = 1;
  Fp8Mode fp8 = Fp8Mode::off;
  Fp8Recipe fp8_recipe = Fp8Recipe::delayed;
  Fp8ScaleFormat fp8_scale_format = Fp8ScaleFormat::power_of_two;             ///< of rowwise and blockwise
  Fp8ScaleFormat fp8_tensorwise_scale_format = Fp8ScaleFormat::power_of_two;  ///< of tensorwise
  Fp8KeptWeights fp8_keep_weights = Fp8KeptWeights::automatic;                ///< see fp8_kept_weights()
  int64_t amax_history_len = 1024;
  AmaxAlgo amax_compute_algo = AmaxAlgo::max;
  int64_t margin = 0;
  bool fp8_recast = true;  ///< delayed: what outgrows its scale is cast again with its own
  int64_t first_layers_bf16 = 0;
  int64_t last_layers_bf16 = 0;
  std::string overrides;          ///< rules of precision_overrides.h
  bool fp8_output_layer = false;  ///< the classifier's GEMMs, too
  bool fp8_calibrate = false;     ///< with fp8 off: record the amaxes that an FP8 run would see
  /// Passes over the first microbatch before step 1 that fill the amax history, so that step 1 does not run
  /// at scale 1. 0: Transformer Engine's behaviour.
  int64_t fp8_calibration_passes = 2;
  int64_t fp8_from_step = 0;   ///< the first step in FP8; 0: step 1
  int64_t fp8_until_step = 0;  ///< the last one; 0: that of the run

  /// Step `step` (from 1) is one of these two and those between. Of an FP8 run; the others are taken in `dtype`.
  bool fp8_in_step(int64_t step) const {
    return step >= fp8_from_step && (fp8_until_step == 0 || step <= fp8_until_step);
  }
};

/// How the ranks of a job share the work. The data-parallel size is what is left: ranks / (tensor * context *
/// pipeline).
struct ParallelConfig {
  int64_t ranks = 0;  ///< of the job that the config is made for; 0: as few as the layout needs
  int64_t tensor = 1;
  int64_t context = 1;  ///< ranks that share the tokens of every sequence
  int64_t pipeline = 1;
  bool sequence = false;       ///< norms and the residual stream are sharded over the tensor ranks, too
  int64_t virtual_stages = 1;  ///< model chunks of a pipeline stage
  std::string pipeline_split = "even";  ///< layers of each piece of the pipeline: config/pipeline_split.h
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  /// Pieces along the tokens into which a GEMM next to a tensor-parallel collective is cut, so that the
  /// collective of one piece runs beside the GEMM of the next. 1: no overlap.
  int64_t tensor_overlap = 1;
  Transport tensor_transport = Transport::nccl;
  Shard shard = Shard::optimizer;    ///< what of the layers a data rank keeps its share of alone
  int64_t bucket_size = 40'000'000;  ///< parameters of one reduction of gradients, at least
  bool overlap_grad_reduce = true;   ///< a bucket is reduced as soon as the backward pass has finished it
  bool overlap_param_gather = true;  ///< new values are gathered while the next forward pass runs
  Transport data_transport = Transport::nccl;  ///< of gradients and values
  bool fp8_param_gather = true;                ///< new FP8 weights travel as bytes: see gathers_fp8_weights()
  Transport pipeline_transport = Transport::nccl;  ///< of the stream and its gradient between stages
  bool overlap_receive = false;   ///< pipeline: a message may arrive while the pass before its own runs
  int64_t timeout_seconds = 600;  ///< of a rank that waits for others; 0: for ever

  int64_t model_ranks() const { return tensor * context * pipeline; }
  /// `ranks`, in whole copies of the model.
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
  bool deterministic = true;  ///< on a GPU: sums of attention's backward pass in a fixed order
  GemmAutotune gemm_autotune = GemmAutotune::on;  ///< kernels/gemm/gemm.h
  DeviceChoice device = DeviceChoice::automatic;
  int64_t device_index = 0;
  int64_t eval_interval = 0;       ///< steps between evaluations; 0: never
  int64_t eval_microbatches = 10;  ///< microbatches of one evaluation
  int64_t max_nonfinite_steps =
      10;  ///< training stops after so many skipped steps in a row, or so many rollbacks
  LossSpikes loss_spikes = LossSpikes::warn;  ///< train/loss_spikes.h
  double loss_spike_threshold = 10.0;         ///< robust standard deviations above the median
  double z_loss_coefficient = 0.0;            ///< kernels/cross_entropy/cross_entropy.h; 0: no z-loss
  std::string
      best_valid_set;  ///< by whose loss a checkpoint is the best; the first of data.valid when absent
  int64_t early_stopping_patience = 0;    ///< evaluations without gain after which the run ends; 0: never
  double early_stopping_min_delta = 0.0;  ///< by how much a loss must be below the lowest to be a gain
};

struct OptimizerConfig {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  double min_lr = 3e-5;  ///< in a file: a tenth of lr when absent
  int64_t warmup_steps = 0;
  LrDecay decay = LrDecay::cosine;
  int64_t decay_steps = 0;      ///< train_steps when absent
  int64_t wsd_decay_steps = 0;  ///< a tenth of decay_steps, at least 1, when absent
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip_grad = 1.0;                         ///< 0: no clipping
  GradDType main_grad_dtype = GradDType::fp32;    ///< of accumulated gradients and their reduction
  bool store_param_remainders = false;            ///< main parameters are BF16 values and 16 more bits
  MomentDType exp_avg_dtype = MomentDType::fp32;  ///< in memory and in checkpoints
  MomentDType exp_avg_sq_dtype = MomentDType::fp32;
  Offload offload = Offload::none;
  int64_t offload_buffer_mib = 512;  ///< device memory through which what is offloaded passes, at most
  double muon_momentum = 0.95;       ///< muon: optim/muon.h
  bool muon_nesterov = true;
  int64_t muon_ns_steps = 5;  ///< iterations of Newton-Schulz
  double muon_scale = 0.2;    ///< times sqrt(max(rows, columns)): what an orthogonal update is multiplied by
};

struct DataSource {
  double weight = 1.0;  ///< relative; weights need not sum to 1
  std::string prefix;   ///< PREFIX.bin and PREFIX.idx, relative to the working directory
  bool operator==(const DataSource&) const = default;
};

/// Datasets that are evaluated together, under one name. A plain list in YAML is the set "valid".
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
  int64_t max_documents = 32;              ///< with document_mask: per sample, on average over a microbatch
  bool eod_mask_loss = false;              ///< pretrain: no loss on the first token of a document
  Overlong overlong = Overlong::truncate;  ///< instruct: conversations of more than seq_length + 1 tokens
  std::string tokenizer;                   ///< as given to te-data; checkpoints keep it
  bool check_tokenizer = true;             ///< refuse datasets that another tokenizer has made
  bool check_fingerprint = true;           ///< resumed: refuse datasets that are not what they were
};

struct CheckpointConfig {
  std::string directory;         ///< logging.directory + "/checkpoints" when absent
  int64_t save_every = 0;        ///< steps; 0: never
  bool save_last = true;         ///< save after the last step
  int64_t keep = 0;              ///< checkpoints that are kept; 0: all
  int64_t keep_best = 0;         ///< besides: those with the lowest validation losses; 0: none
  bool async = true;             ///< write in the background, from a copy in host memory
  bool save_optimizer = true;    ///< moments are saved, too
  std::string resume = "never";  ///< "never", "auto" (the latest of directory, if any) or a checkpoint's path
  bool resume_fallback = true;   ///< resume auto: from the checkpoint before a damaged one
  bool load_optimizer = true;    ///< moments are resumed, too
  std::string init_from;         ///< checkpoint whose weights a new run starts with; empty: random weights
};

struct LoggingConfig {
  std::string directory;             ///< "runs/" + Config::name when absent
  int64_t every = 1;                 ///< steps between console lines and log records
  std::string csv = "loss.csv";      ///< inside directory; empty: none
  bool jsonl = true;                 ///< metrics.jsonl inside directory
  bool tensorboard = true;           ///< an event file inside directory
  int64_t fp8_stats_every = 10;      ///< steps between FP8 health records; 0: off
  int64_t fp8_statistics_every = 0;  ///< steps between records of what casting does to every operand; 0: off
  std::vector<std::string> fp8_what_if;  ///< recipes whose casts of the same operands are recorded, too
  bool loss_by_source = false;           ///< of a blend: the loss of each dataset, too
  int64_t generate_every = 0;            ///< steps between texts of the model; 0: none
  std::vector<std::string> generate_prompts;
  std::string generate_prompt_file;   ///< more of them, one a line
  int64_t generate_tokens = 64;       ///< per prompt, at most
  double generate_temperature = 0.0;  ///< 0: the most probable token
  int64_t generate_top_k = 0;         ///< 0: all
  double generate_top_p = 1.0;
};

/// Tasks that the model is judged by while it trains: train/task_results.h.
struct EvaluationConfig {
  int64_t every = 0;               ///< steps between evaluations; 0: none
  std::vector<std::string> tasks;  ///< as after te-generate evaluate --tasks
  std::string data;                ///< the folder with the tasks' data
  int64_t limit = 0;               ///< documents of each task; 0: all
  int64_t batch = 32;              ///< documents at a time, at most; the cache grows with them
};

/// An FP8 run that watches itself: train/guard.h.
struct GuardConfig {
  int64_t every = 0;          ///< steps between comparisons with BF16; 0: none
  int64_t compare_steps = 4;  ///< that are taken in both precisions
  GuardAction action = GuardAction::warn;
  int64_t bf16_steps = 100;  ///< taken in BF16 after an excess
  double threshold = 6.0;    ///< robust standard deviations above the median gap of earlier comparisons
  double tolerance = 0.005;  ///< of the loss: smaller gaps are none
  bool validate = false;     ///< validation losses are compared, too
  int64_t test_outlier_step =
      0;  ///< for tests: from this step on FP8 inputs of linear_fc2 have an outlier; 0: never
  int64_t test_outlier_log2 = 18;  ///< so many times (log2) as large as their largest value
};

struct Config {
  std::string name;  ///< stem of the config file; not a key
  ModelConfig model;
  PrecisionConfig precision;
  ParallelConfig parallel;
  TrainingConfig training;
  OptimizerConfig optimizer;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  EvaluationConfig evaluation;
  GuardConfig guard;
};

/// Reads, overrides ("model.num_layers=4"), fills in defaults and validates. UserError, one line, that names
/// file, line and key (or the override) on any mistake.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {});

/// load_config on text; source_name stands for the file in errors and gives Config::name (its stem).
Config parse_config(const std::string& yaml_text, const std::string& source_name,
                    const std::vector<std::string>& overrides = {});

/// Fills in what is still 0 or empty and has a default that depends on other keys (the comments above say
/// "when absent"). For configs made in code; the loader has done it.
void resolve_defaults(Config& config);

/// precision.fp8_keep_weights, with `auto` decided.
Fp8KeptWeights fp8_kept_weights(const Config& config);

/// An FP8 run that may take steps in high precision, too: by schedule, or for its guard. Operands have the memory of
/// both.
bool mixes_precisions(const Config& config);

/// Somebody reads the BF16 values of FP8 weights: texts and tasks of a run, or steps in high precision.
bool reads_values_of_fp8_weights(const Config& config);

/// Several data ranks cast their shares of new FP8 weights and gather bytes, not BF16 values: with
/// parallel.fp8_param_gather, where nobody reads the values of the others' shares.
bool gathers_fp8_weights(const Config& config);

/// Checks every range and every combination of keys; UserError with key names and arithmetic. Rules that
/// depend on the device are checked when training.device names one.
void validate(const Config& config);

/// The rules of one device, for when training.device is auto and the device has been chosen.
void validate_for_device(const Config& config, bool cuda);

/// The effective config as YAML; parse_config(to_yaml(c)) gives c again.
std::string to_yaml(const Config& config);

/// A key whose value differs between two configs, as YAML.
struct ChangedKey {
  std::string path, before, now;
};

/// The keys of a text that to_yaml wrote (of this or another version) that `now` has with another value.
std::vector<ChangedKey> changed_keys(const std::string& before, const Config& now);

/// The value of a string key in such a text; empty where it has none.
std::string string_in(const std::string& yaml, std::string_view path);

/// The keys with another value than if nobody had set them, and those that must be set; in the table's order.
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
