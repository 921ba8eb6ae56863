// The layouts and settings that layout_mpi_test.cpp compares with one rank: a covering set, not the cross product.
// Every layout meets both model families, every recipe and every way to recompute; every pair of a schedule or a tensor
// layout with a precision, and of a schedule with data parallelism, occurs at least once.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "config/config.h"
#include "testing/model_forms.h"

namespace te::testing {

using config::ComputeDType;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::PipelineSchedule;
using config::Recompute;

/// fp32_wide, bf16_wide: without FP8, but with the sizes of the FP8 cases, whose rounding they measure.
enum class Precision : uint8_t {
  fp32,
  bf16,
  fp16,
  fp32_wide,
  bf16_wide,
  delayed,
  tensorwise,
  delayed_fp32,
  tensorwise_fp32,
  rowwise,
  blockwise
};

/// The learning rate of layouts that add up in another order, of forms with norms on the sublayers' outputs. There a
/// change of the weights, and so what rounding makes of them in two steps, moves the gradients some ten times as much.
constexpr double kSmallSteps = 2e-4;

/// Other forms of a layer; plain: none of them.
enum class Form : uint8_t { plain, qwen3, olmo2, gpt_neox, biases_window, window_pattern, gemma3 };

struct Case {
  std::string name;
  Family family = Family::gpt;
  Precision precision = Precision::fp32;
  int tensor = 1, pipeline = 1;  ///< with context the rest of the world is data parallelism
  bool sequence = false;
  int overlap = 1;  ///< parallel.tensor_overlap
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  Recompute recompute = Recompute::none;
  int layers = 4;
  bool dropout = false;  ///< gpt: hidden and attention dropout
  bool variant =
      false;  ///< llama: biases of qkv and tied embeddings; gpt: an output matrix of its own (tied otherwise)
  bool data_overlap = true;
  bool late_reduce = false;  ///< without overlap_grad_reduce alone
  int bucket_size = 1;       ///< elements: a bucket a layer
  bool bf16_grads = false;   ///< main gradients
  bool fp8_head = false;     ///< precision.fp8_output_layer
  std::string overrides{};   ///< precision.overrides
  Form form = Form::plain;
  int context = 1;
  int groups = 0;  ///< query groups; 0: as many as the tensor size needs
  config::Shard shard = config::Shard::optimizer;
  double z_loss = 0;
  bool muon = false;
  double lr = 5e-3;
  std::string split = "even";  ///< parallel.pipeline_split
  bool copies = false;         ///< parallel.tensor_transport, data_transport and pipeline_transport copy
  int chunks = 0;              ///< parallel.virtual_stages; 0: 2 of interleaved, 1 of any other schedule
  int seq = 0;                 ///< model.seq_length; 0: by width

  bool norms_on_outputs() const { return form == Form::olmo2 || form == Form::gemma3; }
  bool fp8() const { return precision >= Precision::delayed; }
  bool tied() const { return (family == Family::llama) == variant; }
  bool delayed() const { return precision == Precision::delayed || precision == Precision::delayed_fp32; }
  Fp8Recipe recipe() const {
    if (precision == Precision::rowwise) return Fp8Recipe::rowwise;
    if (precision == Precision::blockwise) return Fp8Recipe::blockwise;
    return delayed() ? Fp8Recipe::delayed : Fp8Recipe::tensorwise;
  }
  bool wide() const { return precision >= Precision::fp32_wide; }
  bool fp32() const {
    return precision == Precision::fp32 || precision == Precision::fp32_wide ||
           precision == Precision::delayed_fp32 || precision == Precision::tensorwise_fp32;
  }
};
inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

inline void set_form(config::ModelConfig& m, Form form) {
  switch (form) {
    case Form::plain:
      break;
    case Form::qwen3:
      m.qk_norm = config::QkNorm::head;
      break;
    case Form::olmo2:
      m.qk_norm = config::QkNorm::projection;
      m.norm_placement = config::NormPlacement::post;
      break;
    case Form::gpt_neox:
      m.position_embedding = config::PositionEmbedding::rope;
      m.rotary_percent = 0.5;
      m.parallel_residual = true;
      m.activation = config::Activation::gelu_exact;
      break;
    case Form::biases_window:
      m.add_qkv_bias = m.add_proj_bias = m.add_mlp_bias = true;
      m.sliding_window = 6;
      break;
    case Form::window_pattern:
      m.sliding_window = 6;
      m.window_pattern = "2w f";
      break;
    case Form::gemma3:
      set_gemma3(m);
      m.sliding_window = 6;
      m.add_qkv_bias = false;
      break;
  }
}

inline config::Config make_config(const Case& c) {
  config::Config config;
  config.name = "small";
  const bool llama = c.family == Family::llama;
  config::ModelConfig& m = config.model;
  m.family = c.family;
  m.num_layers = c.layers;
  m.hidden_size = c.wide() ? 64 : 32;
  m.num_attention_heads = c.wide() ? 4 : 8;
  // Grouped queries, in as many groups as the largest tensor size needs.
  m.num_query_groups =
      llama && !(c.wide() && c.tensor == 4) ? (c.tensor == 4 ? 4 : 2) : m.num_attention_heads;
  if (c.groups > 0) m.num_query_groups = c.groups;
  m.ffn_hidden_size = c.wide() ? 128 : 48;
  m.vocab_size = 101;  // 3 of 104 rows are padding, on the last tensor rank
  m.make_vocab_size_divisible_by = c.fp8_head ? 64 : 8;
  m.seq_length = c.seq > 0 ? c.seq : c.wide() ? 32 : 16;
  m.tie_word_embeddings = c.tied();
  m.add_qkv_bias = llama && c.variant;
  m.init_method_std = 0.1;
  set_form(m, c.form);
  if (c.dropout) m.hidden_dropout = m.attention_dropout = 0.1;
  config.precision.dtype = c.fp32()                         ? ComputeDType::fp32
                           : c.precision == Precision::fp16 ? ComputeDType::fp16
                                                            : ComputeDType::bf16;
  if (c.fp8()) {
    config.precision.fp8 = Fp8Mode::hybrid;
    config.precision.fp8_recipe = c.recipe();
    // tensorwise in both of its formats: in FP32 where overrides ask for it.
    if (!c.overrides.empty()) config.precision.fp8_tensorwise_scale_format = config::Fp8ScaleFormat::fp32;
    config.precision.amax_history_len = 8;
    config.precision.fp8_output_layer = c.fp8_head;
    config.precision.overrides = c.overrides;
  }
  config::ParallelConfig& p = config.parallel;
  p.tensor = c.tensor;
  p.context = c.context;
  p.pipeline = c.pipeline;
  p.sequence = c.sequence;
  p.tensor_overlap = c.overlap;
  if (c.copies) p.tensor_transport = p.data_transport = p.pipeline_transport = config::Transport::copy;
  p.schedule = c.schedule;
  p.pipeline_split = c.split;
  p.virtual_stages = c.chunks > 0 ? c.chunks : c.schedule == PipelineSchedule::interleaved ? 2 : 1;
  p.bucket_size = c.bucket_size;
  p.shard = c.shard;
  p.overlap_grad_reduce = c.data_overlap && !c.late_reduce;
  p.overlap_param_gather = c.data_overlap;
  config.training.recompute = c.recompute;
  config.training.micro_batch_size = 2;
  config.training.global_batch_size = 8;
  config.training.train_steps = 20;
  config.training.device = config::DeviceChoice::cpu;
  config.optimizer.lr = c.lr;
  config.optimizer.min_lr = c.lr / 5;
  // Adam divides a gradient by its own size. Where a gradient is zero but for rounding (a bias of keys shifts all
  // scores of a softmax alike), that would make full steps of the rounding, unless eps is well above it.
  config.optimizer.eps = 1e-4;
  // Clipping scales by the norm, whose sum depends on the layout. FP8 runs go without, so that what else is equal stays
  // equal bit for bit.
  // So do runs whose norm, behind norms on every output, moves most with the weights.
  if (c.wide() || c.norms_on_outputs()) config.optimizer.clip_grad = 0;
  config.training.z_loss_coefficient = c.z_loss;
  if (c.muon) config.optimizer.name = config::OptimizerName::muon;
  if (c.bf16_grads) config.optimizer.main_grad_dtype = config::GradDType::bf16;
  config.data.synthetic = true;
  config::resolve_defaults(config);
  return config;
}

/// On a GPU: layers that are large enough for messages and passes to overlap in time.
inline void enlarge(config::Config& config) {
  config::ModelConfig& m = config.model;
  m.hidden_size = 1024, m.ffn_hidden_size = 2048, m.num_attention_heads = 8, m.num_query_groups = 8;
  m.kv_channels = 128;
  m.seq_length = m.max_position_embeddings = 256;
  // Smaller models take more. Of this one the first loss would be twice that of guessing, and a last bit of a gradient
  // would be two thousandths of the loss four steps later (on the CPU, too).
  m.init_method_std = 0.02;
  config.optimizer.lr = 2e-4, config.optimizer.min_lr = 0;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
}

/// The cases of a job of so many ranks.
inline std::vector<Case> cases_of(int ranks) {
  using enum Precision;
  using enum PipelineSchedule;
  const auto gpt = Family::gpt, llama = Family::llama;
  const auto selective = Recompute::selective, full = Recompute::full;
  switch (ranks) {
    case 1:
      return {{.name = "one_rank", .family = gpt, .dropout = true}};
    case 2:
      return {
          {.name = "tp2_gpt", .family = gpt, .tensor = 2},
          {.name = "tp2_llama_overlap",
           .family = llama,
           .tensor = 2,
           .overlap = 2,
           .recompute = full,
           .variant = true},
          {.name = "tp2_sp_gpt_overlap_dropout",
           .family = gpt,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .dropout = true},
          {.name = "tp2_sp_llama", .family = llama, .tensor = 2, .sequence = true, .recompute = full},
          {.name = "pp2_gpt_1f1b", .family = gpt, .pipeline = 2, .recompute = full, .layers = 5},
          {.name = "pp2_llama_gpipe_tied",
           .family = llama,
           .pipeline = 2,
           .schedule = gpipe,
           .variant = true},
          {.name = "pp2_llama_interleaved",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = selective,
           .layers = 5},
          {.name = "pp2_gpt_zero_bubble_dropout",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .dropout = true},
          {.name = "pp2_llama_split",
           .family = llama,
           .pipeline = 2,
           .layers = 5,
           .variant = true,
           .split = "4,1"},
          {.name = "pp2_gpt_interleaved_split",
           .family = gpt,
           .pipeline = 2,
           .schedule = interleaved,
           .layers = 7,
           .dropout = true,
           .split = "1,3,2,1"},
          {.name = "pp2_llama_delayed_split",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .split = "1,4"},
          {.name = "pp2_gpt_zero_bubble_chunks_dropout",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .dropout = true,
           .chunks = 2},
          {.name = "pp2_llama_delayed_zero_bubble_chunks_split",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 7,
           .split = "1,3,2,1",
           .chunks = 2},
          {.name = "pp2_gpt_overrides_zero_bubble_chunks",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .overrides = "linear_fc2 wgrad: bf16; linear_proj dgrad: bf16; layers -1: rowwise; layers 0: "
                        "blockwise",
           .chunks = 2},
          {.name = "pp2_llama_bf16_zero_bubble_chunks_tied",
           .family = llama,
           .precision = bf16,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 6,
           .variant = true,
           .form = Form::window_pattern,
           .chunks = 3},
          {.name = "dp2_gpt_dropout", .family = gpt, .recompute = selective, .dropout = true},
          {.name = "dp2_llama_no_overlap", .family = llama, .recompute = full, .data_overlap = false},
          {.name = "dp2_gpt_bf16_grads", .family = gpt, .variant = true, .bf16_grads = true},
          {.name = "tp2_sp_llama_bf16", .family = llama, .precision = bf16, .tensor = 2, .sequence = true},
          {.name = "pp2_gpt_bf16_zero_bubble",
           .family = gpt,
           .precision = bf16,
           .pipeline = 2,
           .schedule = zero_bubble},
          {.name = "tp2_sp_llama_fp16", .family = llama, .precision = fp16, .tensor = 2, .sequence = true},
          {.name = "pp2_gpt_fp16_zero_bubble",
           .family = gpt,
           .precision = fp16,
           .pipeline = 2,
           .schedule = zero_bubble},
          {.name = "dp2_llama_fp16", .family = llama, .precision = fp16, .recompute = selective},
          {.name = "tp2_gpt_delayed", .family = gpt, .precision = delayed, .tensor = 2, .recompute = full},
          {.name = "tp2_sp_llama_delayed_overlap",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective},
          {.name = "tp2_sp_gpt_tensorwise",
           .family = gpt,
           .precision = tensorwise,
           .tensor = 2,
           .sequence = true},
          {.name = "tp2_llama_tensorwise_overlap_fp32",
           .family = llama,
           .precision = tensorwise_fp32,
           .tensor = 2,
           .overlap = 2,
           .recompute = selective},
          {.name = "pp2_gpt_delayed_zero_bubble",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .variant = true},
          {.name = "pp2_llama_tensorwise_interleaved",
           .family = llama,
           .precision = tensorwise,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = full},
          {.name = "pp2_llama_delayed_1f1b_fp32",
           .family = llama,
           .precision = delayed_fp32,
           .pipeline = 2,
           .recompute = selective},
          {.name = "tp2_sp_gpt_delayed_head_fp32",
           .family = gpt,
           .precision = delayed_fp32,
           .tensor = 2,
           .sequence = true,
           .fp8_head = true},
          {.name = "pp2_gpt_delayed_head",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .fp8_head = true},
          {.name = "dp2_llama_delayed", .family = llama, .precision = delayed, .bucket_size = 20'000},
          {.name = "dp2_gpt_tensorwise", .family = gpt, .precision = tensorwise, .recompute = full},
          {.name = "tp2_sp_llama_blockwise_overlap",
           .family = llama,
           .precision = blockwise,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective},
          {.name = "tp2_gpt_rowwise_overlap",
           .family = gpt,
           .precision = rowwise,
           .tensor = 2,
           .overlap = 2,
           .recompute = full},
          {.name = "pp2_llama_rowwise_zero_bubble",
           .family = llama,
           .precision = rowwise,
           .pipeline = 2,
           .schedule = zero_bubble},
          {.name = "tp2_sp_llama_overrides",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .overrides = "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise"},
          {.name = "pp2_gpt_overrides_zero_bubble",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .overrides = "linear_fc2 wgrad: bf16; linear_proj dgrad: bf16; layers -1: rowwise"},
          // A rank's tokens are a group, or two: its FP8 values travel with their scales.
          {.name = "tp2_sp_gpt_blockwise_groups",
           .family = gpt,
           .precision = blockwise,
           .tensor = 2,
           .sequence = true,
           .recompute = selective,
           .layers = 2,
           .seq = 128},
          {.name = "tp2_sp_llama_blockwise_groups_overlap",
           .family = llama,
           .precision = blockwise,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .layers = 2,
           .variant = true,
           .seq = 256},
          {.name = "dp2_gpt_blockwise", .family = gpt, .precision = blockwise, .recompute = full},
          {.name = "tp2_qwen3", .family = llama, .tensor = 2, .recompute = full, .form = Form::qwen3},
          {.name = "tp2_sp_qwen3_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .recompute = selective,
           .form = Form::qwen3},
          {.name = "tp2_sp_llama_biases_window_overlap",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .form = Form::biases_window},
          {.name = "tp2_sp_gpt_neox_overlap_dropout",
           .family = gpt,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .dropout = true,
           .form = Form::gpt_neox},
          {.name = "pp2_gpt_neox_delayed_zero_bubble",
           .family = gpt,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .form = Form::gpt_neox},
          {.name = "pp2_olmo2_zero_bubble",
           .family = llama,
           .pipeline = 2,
           .schedule = zero_bubble,
           .form = Form::olmo2},
          {.name = "pp2_olmo2_delayed_1f1b",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .recompute = selective,
           .form = Form::olmo2},
          {.name = "tp2_sp_gemma3_overlap",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .variant = true,
           .form = Form::gemma3,
           .lr = kSmallSteps},
          {.name = "pp2_gemma3_interleaved",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = full,
           .layers = 5,
           .form = Form::gemma3},
          {.name = "pp2_gemma3_delayed_zero_bubble",
           .family = llama,
           .precision = delayed,
           .pipeline = 2,
           .schedule = zero_bubble,
           .form = Form::gemma3},
          {.name = "tp2_sp_gemma3_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .form = Form::gemma3},
          {.name = "cp2_gemma3",
           .family = llama,
           .recompute = selective,
           .form = Form::gemma3,
           .context = 2,
           .lr = kSmallSteps},
          {.name = "cp2_gemma3_keys",
           .family = llama,
           .form = Form::gemma3,
           .context = 2,
           .groups = 1,
           .lr = kSmallSteps},
          // The norm of queries and keys is over the heads of all tensor ranks.
          {.name = "tp2_olmo2",
           .family = llama,
           .tensor = 2,
           .recompute = full,
           .form = Form::olmo2,
           .lr = kSmallSteps},
          {.name = "tp2_sp_olmo2_overlap",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .form = Form::olmo2,
           .lr = kSmallSteps},
          {.name = "tp2_sp_olmo2_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .form = Form::olmo2},
          {.name = "tp2_olmo2_tensorwise",
           .family = llama,
           .precision = tensorwise,
           .tensor = 2,
           .recompute = selective,
           .form = Form::olmo2},
          {.name = "tp2_sp_olmo2_blockwise",
           .family = llama,
           .precision = blockwise,
           .tensor = 2,
           .sequence = true,
           .recompute = full,
           .form = Form::olmo2},
          // Sharded gradients and values; sharding_mpi_test.cpp compares these settings with each other.
          {.name = "dp2_gpt_sharded_gradients_dropout",
           .family = gpt,
           .recompute = selective,
           .dropout = true,
           .shard = config::Shard::gradients},
          {.name = "dp2_llama_sharded_parameters_delayed",
           .family = llama,
           .precision = delayed,
           .recompute = full,
           .shard = config::Shard::parameters},
          {.name = "cp2_llama_sharded_parameters",
           .family = llama,
           .context = 2,
           .shard = config::Shard::parameters},
          // Context parallelism: heads are exchanged, or, with fewer query groups than ranks, keys and values.
          {.name = "cp2_gpt_dropout", .family = gpt, .recompute = selective, .dropout = true, .context = 2},
          {.name = "cp2_llama", .family = llama, .recompute = full, .variant = true, .context = 2},
          {.name = "cp2_llama_keys", .family = llama, .recompute = full, .context = 2, .groups = 1},
          {.name = "cp2_gpt_keys_dropout", .family = gpt, .dropout = true, .context = 2, .groups = 1},
          {.name = "cp2_llama_biases_window",
           .family = llama,
           .recompute = selective,
           .form = Form::biases_window,
           .context = 2},
          {.name = "cp2_llama_keys_biases_window",
           .family = llama,
           .form = Form::biases_window,
           .context = 2,
           .groups = 1},
          {.name = "pp2_llama_window_pattern_interleaved",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .layers = 5,
           .form = Form::window_pattern},
          {.name = "cp2_llama_keys_window_pattern",
           .family = llama,
           .recompute = full,
           .form = Form::window_pattern,
           .context = 2,
           .groups = 1},
          {.name = "cp2_qwen3", .family = llama, .form = Form::qwen3, .context = 2},
          {.name = "cp2_olmo2_keys_delayed",
           .family = llama,
           .precision = delayed,
           .recompute = selective,
           .form = Form::olmo2,
           .context = 2,
           .groups = 1},
          {.name = "cp2_gpt_neox_dropout",
           .family = gpt,
           .recompute = full,
           .dropout = true,
           .form = Form::gpt_neox,
           .context = 2},
          {.name = "cp2_gpt_bf16", .family = gpt, .precision = bf16, .context = 2},
          {.name = "cp2_llama_keys_bf16", .family = llama, .precision = bf16, .context = 2, .groups = 1},
          {.name = "cp2_gpt_delayed",
           .family = gpt,
           .precision = delayed,
           .recompute = selective,
           .context = 2},
          {.name = "cp2_llama_keys_delayed",
           .family = llama,
           .precision = delayed,
           .context = 2,
           .groups = 1},
          {.name = "cp2_llama_tensorwise",
           .family = llama,
           .precision = tensorwise,
           .recompute = full,
           .context = 2},
          {.name = "cp2_llama_rowwise", .family = llama, .precision = rowwise, .context = 2},
          {.name = "cp2_gpt_blockwise",
           .family = gpt,
           .precision = blockwise,
           .recompute = full,
           .context = 2},
          {.name = "cp2_llama_overrides",
           .family = llama,
           .precision = delayed,
           .overrides = "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise",
           .context = 2},
          {.name = "tp2_sp_llama_z_loss", .family = llama, .tensor = 2, .sequence = true, .z_loss = 0.02},
          {.name = "pp2_gpt_z_loss", .family = gpt, .pipeline = 2, .schedule = zero_bubble, .z_loss = 0.02},
          {.name = "dp2_llama_delayed_z_loss", .family = llama, .precision = delayed, .z_loss = 0.02},
          {.name = "dp2_gpt_z_loss", .family = gpt, .z_loss = 0.02},
          {.name = "tp2_gpt_muon", .family = gpt, .tensor = 2, .muon = true},
          {.name = "tp2_sp_llama_muon_variant",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .variant = true,
           .muon = true},
          {.name = "tp2_sp_llama_delayed_muon",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .muon = true},
          {.name = "pp2_llama_muon", .family = llama, .pipeline = 2, .layers = 5, .muon = true},
          {.name = "dp2_gpt_muon", .family = gpt, .muon = true},
          {.name = "dp2_llama_muon_large_buckets", .family = llama, .bucket_size = 20'000, .muon = true},
          {.name = "dp2_llama_bf16_muon",
           .family = llama,
           .precision = bf16,
           .bf16_grads = true,
           .muon = true},
          {.name = "dp2_llama_muon_sharded_gradients",
           .family = llama,
           .shard = config::Shard::gradients,
           .muon = true},
          {.name = "dp2_gpt_muon_sharded_parameters",
           .family = gpt,
           .shard = config::Shard::parameters,
           .muon = true},
      };
    case 4:
      return {
          {.name = "tp4_llama", .family = llama, .tensor = 4},
          {.name = "tp4_sp_gpt_overlap",
           .family = gpt,
           .tensor = 4,
           .sequence = true,
           .overlap = 2,
           .recompute = full},
          {.name = "tp4_sp_llama",
           .family = llama,
           .tensor = 4,
           .sequence = true,
           .recompute = selective,
           .variant = true},
          {.name = "tp4_gpt_overlap_dropout", .family = gpt, .tensor = 4, .overlap = 2, .dropout = true},
          {.name = "pp4_gpt_gpipe",
           .family = gpt,
           .pipeline = 4,
           .schedule = gpipe,
           .layers = 5,
           .dropout = true},
          {.name = "pp4_llama_1f1b", .family = llama, .pipeline = 4, .recompute = selective, .layers = 6},
          {.name = "pp4_llama_zero_bubble_split",
           .family = llama,
           .pipeline = 4,
           .schedule = zero_bubble,
           .layers = 8,
           .split = "2,1,3,2"},
          {.name = "pp4_gpt_1f1b_split",
           .family = gpt,
           .pipeline = 4,
           .recompute = full,
           .layers = 7,
           .split = "1,3,1,2"},
          {.name = "pp4_gpt_interleaved",
           .family = gpt,
           .pipeline = 4,
           .schedule = interleaved,
           .recompute = full,
           .layers = 9},
          {.name = "pp4_llama_zero_bubble_tied",
           .family = llama,
           .pipeline = 4,
           .schedule = zero_bubble,
           .layers = 6,
           .variant = true},
          {.name = "pp4_llama_zero_bubble_chunks_tied",
           .family = llama,
           .pipeline = 4,
           .schedule = zero_bubble,
           .layers = 9,
           .variant = true,
           .chunks = 2},
          {.name = "tp2_pp2_sp_gpt_zero_bubble_chunks",
           .family = gpt,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .overlap = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .chunks = 2},
          {.name = "tp2_pp2_sp_llama_blockwise_zero_bubble_chunks",
           .family = llama,
           .precision = blockwise,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble,
           .chunks = 2},
          {.name = "dp2_pp2_gpt_sharded_gradients_zero_bubble_chunks",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .shard = config::Shard::gradients,
           .chunks = 2},
          {.name = "dp2_pp2_llama_zero_bubble_chunks",
           .family = llama,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .bucket_size = 15'000,
           .chunks = 2},
          {.name = "cp2_pp2_llama_tensorwise_zero_bubble_chunks",
           .family = llama,
           .precision = tensorwise,
           .pipeline = 2,
           .schedule = zero_bubble,
           .context = 2,
           .chunks = 2},
          {.name = "tp2_pp2_sp_gpt_zero_bubble",
           .family = gpt,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .overlap = 2,
           .schedule = zero_bubble,
           .layers = 5},
          {.name = "tp2_pp2_sp_llama_interleaved",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = interleaved,
           .recompute = full,
           .layers = 5,
           .variant = true},
          {.name = "tp2_pp2_llama_1f1b",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .overlap = 2,
           .recompute = selective},
          {.name = "tp2_pp2_gpt_gpipe_dropout",
           .family = gpt,
           .tensor = 2,
           .pipeline = 2,
           .schedule = gpipe,
           .dropout = true},
          {.name = "tp2_dp2_gpt", .family = gpt, .tensor = 2, .recompute = full, .bucket_size = 10'000},
          {.name = "tp2_dp2_sp_llama", .family = llama, .tensor = 2, .sequence = true, .overlap = 2},
          {.name = "dp2_pp2_gpt_gpipe", .family = gpt, .pipeline = 2, .schedule = gpipe},
          {.name = "dp2_pp2_llama_interleaved",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .variant = true},
          {.name = "dp2_pp2_gpt_zero_bubble",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .dropout = true,
           .bucket_size = 15'000},
          {.name = "dp4_llama_1f1b_no_overlap",
           .family = llama,
           .recompute = selective,
           .data_overlap = false},
          {.name = "tp4_sp_llama_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 4,
           .sequence = true},
          {.name = "tp2_pp2_sp_llama_blockwise_zero_bubble",
           .family = llama,
           .precision = blockwise,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble},
          {.name = "tp2_dp2_gpt_rowwise", .family = gpt, .precision = rowwise, .tensor = 2},
          {.name = "tp4_gpt_tensorwise",
           .family = gpt,
           .precision = tensorwise,
           .tensor = 4,
           .recompute = full},
          {.name = "pp4_gpt_delayed_interleaved",
           .family = gpt,
           .precision = delayed,
           .pipeline = 4,
           .schedule = interleaved,
           .layers = 8,
           .variant = true},
          {.name = "pp4_llama_tensorwise_1f1b",
           .family = llama,
           .precision = tensorwise,
           .pipeline = 4,
           .recompute = full,
           .layers = 5},
          {.name = "tp2_pp2_sp_gpt_delayed_zero_bubble",
           .family = gpt,
           .precision = delayed,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble},
          {.name = "tp2_dp2_sp_gpt_tensorwise",
           .family = gpt,
           .precision = tensorwise,
           .tensor = 2,
           .sequence = true,
           .recompute = selective},
          {.name = "tp2_dp2_llama_delayed", .family = llama, .precision = delayed, .tensor = 2, .overlap = 2},
          {.name = "tp2_dp2_sp_gpt_sharded_parameters",
           .family = gpt,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .shard = config::Shard::parameters},
          {.name = "tp2_dp2_llama_sharded_parameters_tensorwise",
           .family = llama,
           .precision = tensorwise,
           .tensor = 2,
           .shard = config::Shard::parameters},
          {.name = "dp2_pp2_gpt_sharded_gradients_zero_bubble",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .shard = config::Shard::gradients},
          {.name = "dp2_pp2_llama_sharded_parameters_1f1b",
           .family = llama,
           .pipeline = 2,
           .recompute = full,
           .variant = true,
           .shard = config::Shard::parameters},
          {.name = "tp2_pp2_sp_qwen3_zero_bubble",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble,
           .layers = 5,
           .form = Form::qwen3},
          {.name = "dp2_pp2_olmo2_interleaved",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = full,
           .form = Form::olmo2},
          {.name = "tp4_olmo2", .family = llama, .tensor = 4, .form = Form::olmo2, .lr = kSmallSteps},
          {.name = "tp2_pp2_sp_olmo2_zero_bubble",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble,
           .layers = 5,
           .form = Form::olmo2,
           .lr = kSmallSteps},
          {.name = "tp2_dp2_olmo2_sharded_parameters_rowwise",
           .family = llama,
           .precision = rowwise,
           .tensor = 2,
           .form = Form::olmo2,
           .shard = config::Shard::parameters},
          {.name = "cp2_tp2_sp_olmo2_keys",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .recompute = full,
           .form = Form::olmo2,
           .context = 2,
           .lr = kSmallSteps},
          {.name = "cp4_gpt_dropout", .family = gpt, .recompute = full, .dropout = true, .context = 4},
          {.name = "cp4_llama_keys", .family = llama, .recompute = selective, .context = 4},
          {.name = "cp2_tp2_sp_gpt_overlap_dropout",
           .family = gpt,
           .tensor = 2,
           .sequence = true,
           .overlap = 2,
           .recompute = selective,
           .dropout = true,
           .context = 2},
          {.name = "cp2_tp2_sp_llama_keys",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .variant = true,
           .context = 2},
          {.name = "cp2_pp2_gpt_zero_bubble_dropout",
           .family = gpt,
           .pipeline = 2,
           .schedule = zero_bubble,
           .layers = 5,
           .dropout = true,
           .context = 2},
          {.name = "cp2_pp2_llama_keys_zero_bubble",
           .family = llama,
           .pipeline = 2,
           .schedule = zero_bubble,
           .context = 2,
           .groups = 1},
          {.name = "cp2_pp2_llama_interleaved_tied",
           .family = llama,
           .pipeline = 2,
           .schedule = interleaved,
           .recompute = full,
           .layers = 5,
           .variant = true,
           .context = 2},
          {.name = "cp2_pp2_gpt_gpipe", .family = gpt, .pipeline = 2, .schedule = gpipe, .context = 2},
          {.name = "cp2_dp2_gpt_dropout",
           .family = gpt,
           .dropout = true,
           .bucket_size = 10'000,
           .context = 2},
          {.name = "cp2_dp2_llama_keys_no_overlap",
           .family = llama,
           .recompute = selective,
           .data_overlap = false,
           .context = 2,
           .groups = 1},
          {.name = "cp4_gpt_delayed", .family = gpt, .precision = delayed, .context = 4},
          {.name = "cp4_llama_keys_tensorwise",
           .family = llama,
           .precision = tensorwise,
           .recompute = selective,
           .context = 4},
          {.name = "cp2_tp2_sp_llama_keys_delayed",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .context = 2},
          {.name = "cp2_tp2_gpt_blockwise", .family = gpt, .precision = blockwise, .tensor = 2, .context = 2},
          {.name = "cp2_pp2_llama_tensorwise_zero_bubble",
           .family = llama,
           .precision = tensorwise,
           .pipeline = 2,
           .schedule = zero_bubble,
           .context = 2},
          {.name = "cp2_dp2_gpt_rowwise",
           .family = gpt,
           .precision = rowwise,
           .recompute = full,
           .context = 2},
          {.name = "cp2_dp2_llama_delayed", .family = llama, .precision = delayed, .context = 2},
          {.name = "tp2_dp2_sp_llama_z_loss_muon",
           .family = llama,
           .tensor = 2,
           .sequence = true,
           .z_loss = 0.02,
           .muon = true},
          {.name = "tp4_gpt_muon", .family = gpt, .tensor = 4, .muon = true},
          {.name = "dp4_llama_muon", .family = llama, .muon = true},
      };
    case 8:
      return {
          {.name = "cp2_tp2_pp2_sp_llama_keys_zero_bubble",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = zero_bubble,
           .context = 2},
          {.name = "cp2_tp2_dp2_sp_gpt_delayed",
           .family = gpt,
           .precision = delayed,
           .tensor = 2,
           .sequence = true,
           .context = 2},
          {.name = "tp2_pp2_dp2_sp_gpt_1f1b",
           .family = gpt,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .overlap = 2,
           .layers = 5,
           .dropout = true},
          {.name = "tp2_pp2_dp2_llama_gpipe",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .schedule = gpipe,
           .recompute = full,
           .variant = true},
          {.name = "tp2_pp2_dp2_sp_llama_interleaved",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = interleaved,
           .recompute = selective,
           .layers = 6},
          {.name = "tp2_pp2_dp2_gpt_zero_bubble",
           .family = gpt,
           .tensor = 2,
           .pipeline = 2,
           .overlap = 2,
           .schedule = zero_bubble,
           .data_overlap = false},
          {.name = "tp2_pp2_dp2_sp_llama_delayed_interleaved",
           .family = llama,
           .precision = delayed,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = interleaved,
           .recompute = full},
          {.name = "tp2_pp2_dp2_sp_llama_sharded_parameters",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .schedule = interleaved,
           .shard = config::Shard::parameters},
          {.name = "tp2_pp2_dp2_gpt_tensorwise_zero_bubble",
           .family = gpt,
           .precision = tensorwise,
           .tensor = 2,
           .pipeline = 2,
           .schedule = zero_bubble},
          {.name = "tp2_pp2_dp2_sp_llama_z_loss_muon",
           .family = llama,
           .tensor = 2,
           .pipeline = 2,
           .sequence = true,
           .z_loss = 0.02,
           .muon = true},
      };
    default:
      return {};
  }
}

/// And those with sequence parallelism once more by parallel.tensor_transport copy, in one piece, in pieces of one
/// rank's tokens and of half as many; and by parallel.data_transport and pipeline_transport copy.
inline std::vector<Case> with_copies(std::vector<Case> cases) {
  const size_t count = cases.size();
  int multiple = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!cases[i].sequence || cases[i].tensor == 1) continue;
    Case c = cases[i];
    c.name += "_copies";
    c.copies = true;
    // FP8 wants pieces of 16 tokens, of which there are 64.
    c.overlap = multiple == 0 ? 1 : std::min(multiple * c.tensor, c.wide() ? 4 / c.context : 8);
    multiple = (multiple + 1) % 3;
    cases.push_back(c);
  }
  return cases;
}

}  // namespace te::testing
