// Names of other programs for the keys, if they are too different to be found by edit distance.
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/text.h"
#include "core/suggest.h"

namespace te::config {

namespace {

/// The names that users of Megatron-LM, torchtitan, transformers, nanoGPT and nanochat type most.
constexpr Synonym kSynonyms[] = {
    {"n_layer", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"depth", "model.num_layers"},
    {"n_head", "model.num_attention_heads"},
    {"n_kv_heads", "model.num_query_groups"},
    {"num_key_value_heads", "model.num_query_groups"},
    {"n_embd", "model.hidden_size"},
    {"dim", "model.hidden_size"},
    {"intermediate_size", "model.ffn_hidden_size"},
    {"num_experts", "model.num_moe_experts"},
    {"num_local_experts", "model.num_moe_experts"},
    {"n_routed_experts", "model.num_moe_experts"},
    {"num_experts_per_tok", "model.moe_router_topk"},
    {"moe_intermediate_size", "model.moe_ffn_hidden_size"},
    {"shared_expert_intermediate_size", "model.moe_shared_expert_intermediate_size"},
    {"norm_topk_prob", "model.moe_router_norm_topk_prob"},
    {"routed_scaling_factor", "model.moe_router_topk_scaling_factor"},
    {"router_aux_loss_coef", "model.moe_aux_loss_coeff"},
    {"first_k_dense_replace", "model.first_k_dense"},
    {"head_dim", "model.kv_channels"},
    {"block_size", "model.seq_length"},
    {"seq_len", "model.seq_length"},
    {"rotary_base", "model.rope_theta"},
    {"rope_parameters", "model.rope_scaling"},
    {"rms_norm_eps", "model.norm_epsilon"},
    {"untie_embeddings_and_output_weights", "model.tie_word_embeddings"},
    {"fp8_format", "precision.fp8"},
    {"fp8_margin", "precision.margin"},
    {"num_layers_at_start_in_bf16", "precision.first_layers_bf16"},
    {"num_layers_at_end_in_bf16", "precision.last_layers_bf16"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"tensor_parallel_degree", "parallel.tensor"},
    {"context_parallel_size", "parallel.context"},
    {"expert_model_parallel_size", "parallel.expert"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"pipeline_parallel_degree", "parallel.pipeline"},
    {"sequence_parallel", "parallel.sequence"},
    {"tp", "parallel.tensor"},
    {"pp", "parallel.pipeline"},
    {"cp", "parallel.context"},
    {"virtual_pipeline_model_parallel_size", "parallel.virtual_stages"},
    {"use_distributed_optimizer", "parallel.shard"},
    {"train_iters", "training.train_steps"},
    {"max_steps", "training.train_steps"},
    {"num_iterations", "training.train_steps"},
    {"eval_iters", "training.eval_microbatches"},
    {"batch_size", "training.micro_batch_size"},
    {"local_batch_size", "training.micro_batch_size"},
    {"device_batch_size", "training.micro_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"gradient_accumulation_steps", "training.global_batch_size"},
    {"total_batch_size", "training.global_batch_size"},
    {"recompute_granularity", "training.recompute"},
    {"gradient_checkpointing", "training.recompute"},
    {"learning_rate", "optimizer.lr"},
    {"lr_decay_iters", "optimizer.decay_steps"},
    {"lr_decay_style", "optimizer.decay"},
    {"lr_scheduler_type", "optimizer.decay"},
    {"lr_warmup_iters", "optimizer.warmup_steps"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"grad_clip", "optimizer.clip_grad"},
    {"max_grad_norm", "optimizer.clip_grad"},
    {"data_path", "data.train"},
    {"reset_attention_mask", "data.document_mask"},
    {"save_interval", "checkpoint.save_every"},
    {"save_steps", "checkpoint.save_every"},
    {"load", "checkpoint.resume"},
    {"pretrained_checkpoint", "checkpoint.init_from"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"output_dir", "logging.directory"},
    {"log_interval", "logging.every"},
    {"checkpoint.path", "checkpoint.directory"},
};

constexpr std::string_view kDataParallel =
    "data parallelism has no key: its size is RANKS / (parallel.tensor * parallel.context * "
    "parallel.pipeline); start the ranks with mpirun -n RANKS";
constexpr std::string_view kResume =
    "set checkpoint.resume to auto (--set checkpoint.resume=auto), to never, or to the path of a checkpoint";

constexpr std::string_view kGroups =
    "set optimizer.groups to rules as 'embeddings, output_layer: lr_factor 0.1'";

constexpr std::string_view kGather = "there is no key: FP8 weights are always gathered as FP8";
constexpr std::string_view kSplit =
    "validation has datasets of its own: set data.valid; te-data tokenize --valid-fraction makes them";

/// Hints for names without a key, and for names whose key has different values.
constexpr Synonym kHints[] = {
    {"dp", kDataParallel},
    {"data_parallel", kDataParallel},
    {"data_parallel_size", kDataParallel},
    {"data_parallel_replicate_degree", kDataParallel},
    {"parallel.data", kDataParallel},
    {"num_gpus", kDataParallel},
    {"resume", kResume},
    {"auto_resume", kResume},
    {"decoupled_lr", kGroups},
    {"param_groups", kGroups},
    {"fp8_param_gather", kGather},
    {"split", kSplit},
};

}  // namespace

std::span<const Synonym> synonyms() {
  return kSynonyms;
}

std::string_view hint_of(std::string_view path) {
  for (const Synonym& hint : kHints) {
    const bool leaf = hint.theirs.find('.') == std::string_view::npos;
    if (name_distance(leaf ? path.substr(path.rfind('.') + 1) : path, hint.theirs) == 0) return hint.ours;
  }
  return {};
}

std::string resume_suggestion(std::string_view value) {
  constexpr std::string_view kAuto[] = {"auto", "true", "yes", "on", "latest", "last"};
  constexpr std::string_view kNever[] = {"never", "false", "no", "off", "none"};
  if (value == kAuto[0] || value == kNever[0] || value.find('/') != std::string_view::npos) return "";
  NearestNames meant;
  for (const std::span<const std::string_view> words :
       {std::span<const std::string_view>(kAuto), std::span<const std::string_view>(kNever)}) {
    for (const std::string_view word : words)
      if (const std::optional<int> distance = name_distance(value, word, false))
        meant.add(words[0], *distance);
  }
  return meant.empty() ? "" : meant.question();
}

}  // namespace te::config
