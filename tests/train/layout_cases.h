// A test case of a parallel layout, and its config; shared by the tests of layouts.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "config/config.h"
#include "parameters/parameter_store.h"
#include "testing/model_forms.h"

namespace te::testing {

using config::ComputeDType;
using config::Family;
using config::Fp8Mode;
using config::Fp8Recipe;
using config::PipelineSchedule;
using config::Recompute;

/// fp32_wide, bf16_wide: without FP8, but with the sizes of the FP8 cases, as a reference for rounding.
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
  blockwise,
  mxfp8,
  mxfp8_native,
  nvfp4,
  nvfp4_native
};

/// Learning rate for layouts with a different summation order and norms on the sublayers' outputs. There, changes of
/// the weights, and so rounding in two steps, change the gradients about ten times as much.
constexpr double kSmallSteps = 2e-4;

/// Variants of a layer; plain: none.
enum class ModelVariant : uint8_t {
  plain,
  qwen3,
  olmo2,
  gpt_neox,
  biases_window,
  window_pattern,
  gemma3,
  nanochat,
  experts
};

struct Case {
  std::string name;
  Family family = Family::gpt;
  Precision precision = Precision::fp32;
  int tensor = 1, pipeline = 1;  ///< the remaining ranks, without context, are data-parallel
  bool sequence = false;
  int overlap = 1;  ///< parallel.tensor_overlap
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  Recompute recompute = Recompute::none;
  int layers = 4;
  bool dropout = false;  ///< gpt: hidden and attention dropout
  bool variant = false;  ///< llama: qkv biases and tied embeddings; gpt: untied output layer
  bool data_overlap = true;
  bool late_reduce = false;  ///< only overlap_grad_reduce is off
  int bucket_size = 1;       ///< in elements; 1: one bucket per layer
  bool bf16_grads = false;   ///< of the main gradients
  bool fp8_head = false;     ///< precision.fp8_output_layer
  std::string overrides{};   ///< precision.overrides
  ModelVariant model_variant = ModelVariant::plain;
  int context = 1;
  int groups = 0;  ///< query groups; 0: as many as the tensor size needs
  config::Shard shard = config::Shard::optimizer;
  double z_loss = 0;
  bool muon = false;
  bool lora = false;   ///< adapters of all linear layers and the norms are trained
  bool noise = false;  ///< of the embeddings, and dropout of adapters
  double lr = 5e-3;
  std::string split = "even";  ///< parallel.pipeline_split
  bool copies = false;         ///< parallel.transport copy
  int chunks = 0;              ///< parallel.virtual_stages; 0: 2 if interleaved, else 1
  int seq = 0;                 ///< model.seq_length; 0: by width
  int hidden = 0;              ///< model.hidden_size, twice the width of experts; 0: by width
  int fp8_until = 0;           ///< precision.fp8_until_step
  int expert = 1;
  double dispatch_factor = 2.0;  ///< parallel.moe_dispatch_factor

  bool norms_on_outputs() const {
    return model_variant == ModelVariant::olmo2 || model_variant == ModelVariant::gemma3;
  }
  bool fp8() const { return precision >= Precision::delayed; }
  bool tied() const { return (family == Family::llama) == variant; }
  bool delayed() const { return precision == Precision::delayed || precision == Precision::delayed_fp32; }
  Fp8Recipe recipe() const {
    if (precision == Precision::rowwise) return Fp8Recipe::rowwise;
    if (precision == Precision::blockwise) return Fp8Recipe::blockwise;
    if (precision == Precision::mxfp8 || precision == Precision::mxfp8_native) return Fp8Recipe::mxfp8;
    if (precision == Precision::nvfp4 || precision == Precision::nvfp4_native) return Fp8Recipe::nvfp4;
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

inline void set_variant(config::ModelConfig& m, ModelVariant model_variant, int expert) {
  switch (model_variant) {
    case ModelVariant::plain:
      break;
    case ModelVariant::qwen3:
      m.qk_norm = config::QkNorm::head;
      break;
    case ModelVariant::olmo2:
      m.qk_norm = config::QkNorm::projection;
      m.norm_placement = config::NormPlacement::post;
      break;
    case ModelVariant::gpt_neox:
      m.position_embedding = config::PositionEmbedding::rope;
      m.rotary_percent = 0.5;
      m.parallel_residual = true;
      m.activation = config::ActivationKind::gelu_exact;
      break;
    case ModelVariant::biases_window:
      m.add_qkv_bias = m.add_proj_bias = m.add_mlp_bias = true;
      m.sliding_window = 6;
      break;
    case ModelVariant::window_pattern:
      m.sliding_window = 6;
      m.window_pattern = "2w f";
      break;
    case ModelVariant::experts:
      set_experts(m);
      m.moe_ffn_hidden_size = 32, m.moe_shared_expert_intermediate_size = 16;  // for FP8
      m.moe_router_enable_expert_bias = true;
      m.moe_router_bias_update_rate = 0.02;
      if (expert > 1) m.num_moe_experts = 8;
      return;
    case ModelVariant::gemma3:
      set_gemma3(m);
      m.sliding_window = 6;
      m.add_qkv_bias = false;
      break;
    case ModelVariant::nanochat:
      set_nanochat(m);
      m.add_qkv_bias = false;
      break;
  }
}

inline parameters::DataParallelOptions data_parallel_of(const Case& c) {
  return {.overlap_grad_reduce = c.data_overlap && !c.late_reduce, .overlap_param_gather = c.data_overlap};
}

inline config::Config make_config(const Case& c) {
  config::Config config;
  config.name = "small";
  const bool llama = c.family == Family::llama;
  config::ModelConfig& m = config.model;
  m.family = c.family;
  m.num_layers = c.layers;
  m.hidden_size = c.hidden > 0 ? c.hidden : c.wide() ? 64 : 32;
  m.num_attention_heads = c.wide() ? 4 : 8;
  // Grouped queries, with as many groups as the largest tensor-parallel size needs.
  m.num_query_groups =
      llama && !(c.wide() && c.tensor == 4) ? (c.tensor == 4 ? 4 : 2) : m.num_attention_heads;
  if (c.groups > 0) m.num_query_groups = c.groups;
  m.ffn_hidden_size = c.wide() ? 128 : 48;
  m.vocab_size = 101;  // 3 of 104 rows are padding, on the last tensor-parallel rank
  m.make_vocab_size_divisible_by = c.fp8_head ? 64 : 8;
  m.seq_length = c.seq > 0 ? c.seq : c.wide() ? 32 : 16;
  m.tie_word_embeddings = c.tied();
  m.add_qkv_bias = llama && c.variant;
  m.init_method_std = 0.1;
  set_variant(m, c.model_variant, c.expert);
  if (c.hidden > 0 && m.num_moe_experts > 0) m.moe_ffn_hidden_size = c.hidden / 2;
  if (c.dropout) m.hidden_dropout = m.attention_dropout = 0.1;
  config.precision.dtype = c.fp32()                         ? ComputeDType::fp32
                           : c.precision == Precision::fp16 ? ComputeDType::fp16
                                                            : ComputeDType::bf16;
  if (c.fp8()) {
    config.precision.fp8 = Fp8Mode::hybrid;
    config.precision.fp8_recipe = c.recipe();
    config.precision.mx_gemms =
        c.precision == Precision::mxfp8_native || c.precision == Precision::nvfp4_native;
    // Both scale formats: FP32 if there are overrides.
    if (!c.overrides.empty()) config.precision.fp8_scale_format = config::Fp8ScaleFormat::fp32;
    config.precision.amax_history_len = 8;
    config.precision.fp8_output_layer = c.fp8_head;
    // A tensor of an expert has the rows of other ranks, too, so other tensors would overflow the scale.
    config.precision.fp8_recast = c.expert == 1;
    config.precision.overrides = c.overrides;
    config.precision.fp8_until_step = c.fp8_until;
  }
  config::ParallelConfig& p = config.parallel;
  p.tensor = c.tensor;
  p.context = c.context;
  p.pipeline = c.pipeline;
  p.expert = c.expert;
  p.moe_dispatch_factor = c.dispatch_factor;
  p.sequence = c.sequence;
  p.tensor_overlap = c.overlap;
  p.transport = c.copies ? config::Transport::copy : config::Transport::nccl;
  p.schedule = c.schedule;
  p.pipeline_split = c.split;
  p.virtual_stages = c.chunks > 0 ? c.chunks : c.schedule == PipelineSchedule::interleaved ? 2 : 1;
  p.bucket_size = c.bucket_size;
  p.shard = c.shard;
  config.training.recompute = c.recompute;
  config.training.micro_batch_size = 2;
  config.training.global_batch_size = 8;
  config.training.train_steps = 20;
  config.training.device = config::DeviceChoice::cpu;
  config.optimizer.lr = c.lr;
  config.optimizer.min_lr = c.lr / 5;
  // Adam divides a gradient by its own size. A gradient that is zero up to rounding (a bias of keys shifts all scores
  // of a softmax alike) would thus cause full steps from rounding, unless eps is well above it.
  config.optimizer.eps = 1e-4;
  // Clipping scales by the norm, whose sum depends on the layout. FP8 runs do not clip, so that other values stay
  // bitwise equal; nor do runs with norms on every output, whose gradient norm depends most on the weights.
  if (c.wide() || c.norms_on_outputs()) config.optimizer.clip_grad = 0;
  config.training.z_loss_coefficient = c.z_loss;
  if (c.muon) config.optimizer.name = config::OptimizerName::muon;
  if (c.lora) {
    config.adapter.type = config::AdapterType::lora;
    config.adapter.rank = 8;
    config.adapter.train_norms = true;
    config.checkpoint.init_from = "base";
  }
  if (c.noise) {
    config.training.neftune_noise_alpha = 5;
    config.adapter.dropout = 0.1;
  }
  if (c.bf16_grads) config.optimizer.main_grad_dtype = config::GradDType::bf16;
  config.data.synthetic = true;
  // Experts skip padding. In BF16 it changes which selections rounding decides, for which layout_table.cpp has bounds.
  if (c.precision == Precision::fp32 && c.model_variant == ModelVariant::experts)
    config.data = {.train = {{1.0, "data"}}, .format = config::DataFormat::instruct};
  config::resolve_defaults(config);
  return config;
}

/// For GPUs: layers large enough for communication to overlap with passes.
inline void enlarge(config::Config& config) {
  config::ModelConfig& m = config.model;
  m.hidden_size = 1024, m.ffn_hidden_size = 2048, m.num_attention_heads = 8, m.num_query_groups = 8;
  m.kv_channels = 128;
  m.seq_length = m.max_position_embeddings = 256;
  // Smaller models use a larger std. With it, the first loss of this one would be twice that of a uniform predictor,
  // and the last bit of a gradient would change the loss four steps later by two thousandths (on the CPU, too).
  m.init_method_std = 0.02;
  config.optimizer.lr = 2e-4, config.optimizer.min_lr = 0;
  config.training.device = config::DeviceChoice::cuda;
  config.training.gemm_autotune = config::GemmAutotune::off;  // the same algorithms in every run
}

}  // namespace te::testing
