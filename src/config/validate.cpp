// Checks the combinations of keys before anything is allocated. Each message names the keys, shows the arithmetic and
// tells how to correct it. Ranges of single keys are in the key table.
#include <fmt/ranges.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "config/adapter.h"
#include "config/key_table.h"
#include "config/pipeline_split.h"
#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "config/rope_scaling.h"
#include "config/text.h"
#include "config/update_rules.h"
#include "config/validate_experts.h"
#include "config/validate_model.h"
#include "core/error.h"

namespace te::config {

namespace {

void check_ranges(const Config& config) {
  if (config.model.family == Family::llama && config.model.ffn_hidden_size == 0) {
    user_error("model.ffn_hidden_size is required with model.family llama");
  }
  Config copy = config;
  for (const Key& key : keys()) check_range(key, copy, key.path);
}

/// Number of equal token chunks into which the layout divides a microbatch.
int64_t token_chunks(const ParallelConfig& p) {
  // With copy engines, tensor and tensor_overlap are multiples of each other (check_transport). `auto` may use NCCL.
  const bool copies = p.transport == Transport::copy && p.tensor_copies();
  const int64_t tensor =
      copies ? std::max(p.tensor, p.tensor_overlap) : (p.sequence ? p.tensor : 1) * p.tensor_overlap;
  return tensor * p.context;
}

void check_fp8(const Config& c) {
  const ModelConfig& m = c.model;
  const PrecisionConfig& p = c.precision;
  if (p.first_layers_bf16 + p.last_layers_bf16 > m.num_layers) {
    user_error(
        "precision.first_layers_bf16 ({}) + precision.last_layers_bf16 ({}) = {} is more than "
        "model.num_layers ({})",
        p.first_layers_bf16, p.last_layers_bf16, p.first_layers_bf16 + p.last_layers_bf16, m.num_layers);
  }
  check_overrides(p, m.num_layers);
  for (const std::string& part : p.nvfp4_parts) {
    if (part != "blocks" && part != "hadamard" && part != "stochastic")
      user_error("precision.nvfp4_parts: {} is not blocks, hadamard or stochastic", in_quotes(part));
  }
  if (p.fp8_until_step != 0 && p.fp8_until_step < p.fp8_from_step) {
    user_error(
        "precision.fp8_until_step ({}) is below precision.fp8_from_step ({}): no step would run in FP8; set "
        "precision.fp8 to off, or one of them to 0",
        p.fp8_until_step, p.fp8_from_step);
  }
  if (p.fp8 == Fp8Mode::off) return;
  if (p.fp8_calibrate) {
    user_error(
        "precision.fp8_calibrate is for a run with precision.fp8 off, but fp8 is {}: an FP8 run always "
        "records amaxes; leave fp8_calibrate out",
        to_string(p.fp8));
  }
  const int64_t ranks = c.parallel.tensor;
  const std::string per_rank = ranks == 1 ? "" : fmt::format(" / parallel.tensor {}", ranks);
  check_fp8_dimension(c, "model.hidden_size", m.hidden_size);
  check_fp8_dimension(c, "model.ffn_hidden_size" + per_rank, m.ffn_hidden_size / ranks);
  check_fp8_dimension(c,
                      fmt::format("model.num_attention_heads * model.kv_channels{} = {} * {}", per_rank,
                                  m.num_attention_heads, m.kv_channels),
                      m.attention_width() / ranks);
  if (linear_precision(p, {0, LinearKind::output_layer}, m.num_layers).quantized()) {
    check_fp8_dimension(c, "model.vocab_size, padded," + per_rank, m.padded_vocab_size() / ranks);
  }
  check_fp8_dimension(
      c,
      fmt::format("the width of linear_qkv, (model.num_attention_heads + 2 * model.num_query_groups) * "
                  "model.kv_channels{} = ({} + 2 * {}) * {}",
                  per_rank, m.num_attention_heads, m.num_query_groups, m.kv_channels),
      m.qkv_width() / ranks);
  check_fp8_dimension(
      c,
      fmt::format("the tokens of a microbatch{}, training.micro_batch_size * model.seq_length = {} * {}",
                  token_chunks(c.parallel) == 1 ? "" : fmt::format(" in {} chunks", token_chunks(c.parallel)),
                  c.training.micro_batch_size, m.seq_length),
      c.training.micro_batch_size * m.seq_length / token_chunks(c.parallel));
}

// Features that convert to or from BF16 do not support FP16.
void check_fp16(const Config& c) {
  const PrecisionConfig& p = c.precision;
  if (p.dtype != ComputeDType::fp16) return;
  if (p.fp8 != Fp8Mode::off || p.fp8_calibrate) {
    user_error(
        "precision.{} cannot be combined with precision.dtype fp16: operands are quantized from bf16 or "
        "fp32; set precision.dtype to bf16, or {}",
        p.fp8_calibrate ? "fp8_calibrate" : "fp8",
        p.fp8_calibrate ? "leave fp8_calibrate out" : "precision.fp8 to off");
  }
  if (c.logging.fp8_statistics_every > 0) {
    user_error(
        "logging.fp8_statistics_every ({}) measures quantization from bf16 or fp32, but precision.dtype is "
        "fp16; set it to 0",
        c.logging.fp8_statistics_every);
  }
  if (c.optimizer.main_grad_dtype != GradDType::fp32) {
    user_error(
        "optimizer.main_grad_dtype bf16 cannot be combined with precision.dtype fp16: GEMMs of FP16 matrices "
        "have FP16 or FP32 results; set it to fp32");
  }
  if (c.optimizer.store_param_remainders) {
    user_error(
        "optimizer.store_param_remainders extends BF16 weights, but precision.dtype is fp16; set it to "
        "false");
  }
}

void check_divides(const ModelConfig& m, const char* key, int64_t value, const char* why, int64_t ranks) {
  if (value % ranks == 0) return;
  // All three sizes must be multiples, so the valid numbers of ranks are the divisors of their common divisor.
  const int64_t common = std::gcd(std::gcd(m.num_attention_heads, m.num_query_groups), m.ffn_hidden_size);
  std::string fitting;
  for (int64_t size = 1; size <= common; ++size)
    if (common % size == 0) fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", size);
  user_error("{} ({}) is not a multiple of parallel.tensor ({}): {}; valid values for this model: {}", key,
             value, ranks, why, fitting);
}

// With copy engines, a chunk is the tokens of one or several ranks, or a part of one rank's tokens.
void check_transport(const ParallelConfig& p) {
  if (p.transport != Transport::copy || !p.tensor_copies()) return;
  if (p.tensor % p.tensor_overlap != 0 && p.tensor_overlap % p.tensor != 0) {
    user_error(
        "parallel.tensor_overlap ({}) must divide parallel.tensor ({}) or be a multiple of it with "
        "parallel.transport copy: a chunk is the tokens of one or several ranks, or a part of one "
        "rank's tokens",
        p.tensor_overlap, p.tensor);
  }
}

void check_parallel(const Config& c) {
  const ModelConfig& m = c.model;
  const ParallelConfig& p = c.parallel;
  check_transport(p);
  check_divides(m, "model.num_attention_heads", m.num_attention_heads, "an attention head cannot be split",
                p.tensor);
  check_divides(m, "model.num_query_groups", m.num_query_groups,
                "a key/value head can be neither split nor replicated", p.tensor);
  check_divides(m, "model.ffn_hidden_size", m.ffn_hidden_size, "all ranks must have equal parts", p.tensor);
  if (p.context > 1 && m.seq_length % (2 * p.context) != 0) {
    user_error(
        "model.seq_length ({}) is not a multiple of 2 * parallel.context = {}: each context-parallel rank "
        "has one chunk of the first half and one of the second half of every sequence; the nearest is {}",
        m.seq_length, 2 * p.context, std::max<int64_t>(1, m.seq_length / (2 * p.context)) * 2 * p.context);
  }
  const int64_t tokens = c.training.micro_batch_size * m.seq_length;
  if (tokens % token_chunks(p) != 0) {
    user_error(
        "training.micro_batch_size * model.seq_length = {} * {} = {} tokens of a microbatch are not a "
        "multiple of the {} chunks into which parallel.tensor ({}), parallel.sequence, "
        "parallel.tensor_overlap ({}) and parallel.context ({}) divide them",
        c.training.micro_batch_size, m.seq_length, tokens, token_chunks(p), p.tensor, p.tensor_overlap,
        p.context);
  }
  if (p.schedule == PipelineSchedule::zero_bubble && c.training.recompute != Recompute::none) {
    user_error(
        "parallel.schedule zero_bubble needs training.recompute none, but it is {}: weight gradients are "
        "computed later, from saved inputs; leave training.recompute out, or set schedule to 1f1b",
        to_string(c.training.recompute));
  }
  const int64_t chunks = p.pipeline * p.virtual_stages;
  if (m.num_layers < chunks) {
    user_error(
        "model.num_layers ({}) is below parallel.pipeline * parallel.virtual_stages = {} * {} = {}: every "
        "chunk needs a layer",
        m.num_layers, p.pipeline, p.virtual_stages, chunks);
  }
  check_pipeline_split(c);
}

void check_shard(const Config& c) {
  if (c.parallel.shard != Shard::parameters) return;
  const Fp8KeptWeights kept = c.precision.fp8_keep_weights;
  if (c.precision.fp8 != Fp8Mode::off && kept != Fp8KeptWeights::automatic && kept != Fp8KeptWeights::none) {
    user_error(
        "precision.fp8_keep_weights {} keeps FP8 weights of whole layers, but parallel.shard parameters "
        "shards them across data-parallel ranks; leave fp8_keep_weights out, or set parallel.shard to "
        "gradients",
        to_string(kept));
  }
  if (c.logging.generate_every > 0) {
    user_error(
        "logging.generate_every ({}) needs the weights of whole layers, but parallel.shard parameters shards "
        "them across data-parallel ranks; set generate_every to 0 and run te-generate with checkpoints, or "
        "set parallel.shard to gradients",
        c.logging.generate_every);
  }
  if (c.evaluation.every > 0) {
    user_error(
        "evaluation.every ({}) needs the weights of whole layers, but parallel.shard parameters shards them "
        "across data-parallel ranks; set evaluation.every to 0 and run te-generate evaluate with "
        "checkpoints, or set parallel.shard to gradients",
        c.evaluation.every);
  }
}

void check_training(const Config& c) {
  const TrainingConfig& t = c.training;
  if (t.global_batch_size % t.micro_batch_size != 0) {
    user_error(
        "training.global_batch_size ({}) is not a multiple of training.micro_batch_size ({}): {} remain",
        t.global_batch_size, t.micro_batch_size, t.global_batch_size % t.micro_batch_size);
  }
  const int64_t tokens = t.micro_batch_size * c.model.seq_length;
  if (tokens > INT32_MAX) {
    user_error(
        "training.micro_batch_size * model.seq_length = {} * {} = {} tokens of a microbatch must be below "
        "2^31",
        t.micro_batch_size, c.model.seq_length, tokens);
  }
  const double total = static_cast<double>(t.global_batch_size) * static_cast<double>(c.model.seq_length) *
                       static_cast<double>(t.train_steps);
  if (total > 9e18) {
    user_error(
        "training.global_batch_size * model.seq_length * training.train_steps = {} * {} * {} tokens must be "
        "below 2^63",
        t.global_batch_size, c.model.seq_length, t.train_steps);
  }
}

void check_optimizer(const Config& c) {
  const OptimizerConfig& o = c.optimizer;
  update_rules(o);
  if (o.min_lr > o.lr) user_error("optimizer.min_lr ({}) is above optimizer.lr ({})", o.min_lr, o.lr);
  // A run that is shortened by --set training.train_steps=10 can end during warmup; a given decay_steps cannot.
  if (o.decay_steps != c.training.train_steps && o.decay != LrDecay::constant &&
      o.warmup_steps >= o.decay_steps) {
    user_error(
        "optimizer.warmup_steps ({}) must be below optimizer.decay_steps ({}), which includes the warmup",
        o.warmup_steps, o.decay_steps);
  }
  if (o.decay == LrDecay::wsd && o.wsd_decay_steps > o.decay_steps) {
    user_error("optimizer.wsd_decay_steps ({}) is above optimizer.decay_steps ({})", o.wsd_decay_steps,
               o.decay_steps);
  }
  if (o.name == OptimizerName::muon &&
      (o.exp_avg_dtype != MomentDType::fp32 || o.exp_avg_sq_dtype != MomentDType::fp32)) {
    user_error(
        "optimizer.{} is for optimizer.name adamw: muon keeps FP32 moments, one per matrix instead of two; "
        "leave it out",
        o.exp_avg_dtype != MomentDType::fp32 ? "exp_avg_dtype" : "exp_avg_sq_dtype");
  }
  if (o.name == OptimizerName::muon && o.offload != Offload::none) {
    user_error(
        "optimizer.offload {} is for optimizer.name adamw: muon's update needs whole matrices; leave it out, "
        "or shard the state across more data-parallel ranks",
        to_string(o.offload));
  }
}

void check_sources(const std::vector<DataSource>& sources, std::string_view key) {
  for (const DataSource& source : sources) {
    if (!(source.weight > 0.0) || !std::isfinite(source.weight)) {
      user_error("{}: the weight {} of {} must be above 0", key, source.weight, in_quotes(source.prefix));
    }
    if (source.prefix.empty()) user_error("{}: a path prefix is empty", key);
  }
}

// Checks the keys that depend on the loss of a validation set.
void check_evaluation(const Config& c) {
  const TrainingConfig& t = c.training;
  const auto needs_evaluation = [&](std::string_view key, int64_t value) {
    if (value > 0 && t.eval_interval == 0)
      user_error("{} ({}) needs a validation loss, but training.eval_interval is 0; set it, or {} to 0", key,
                 value, key);
  };
  needs_evaluation("checkpoint.keep_best", c.checkpoint.keep_best);
  needs_evaluation("training.early_stopping_patience", t.early_stopping_patience);
}

void check_samples(const Config& c) {
  const LoggingConfig& l = c.logging;
  if (l.generate_every == 0) return;
  if (l.generate_prompts.empty())
    user_error("logging.generate_every ({}) needs logging.generate_prompts, a list of texts",
               l.generate_every);
  if (c.data.tokenizer.empty()) {
    user_error("logging.generate_every ({}) needs data.tokenizer, which encodes the prompts; set it",
               l.generate_every);
  }
  if (c.parallel.virtual_stages > 1) {
    user_error(
        "logging.generate_every ({}) needs stages of consecutive layers, but parallel.virtual_stages is {}; "
        "set generate_every to 0 and run te-generate with checkpoints",
        l.generate_every, c.parallel.virtual_stages);
  }
}

void check_tasks(const Config& c) {
  const EvaluationConfig& e = c.evaluation;
  if (e.every == 0) return;
  if (e.tasks.empty()) {
    user_error("evaluation.every ({}) needs evaluation.tasks, a list such as [hellaswag, lambada_openai]",
               e.every);
  }
  if (e.data.empty())
    user_error("evaluation.every ({}) needs evaluation.data, the folder with the data of evaluation.tasks",
               e.every);
  if (c.data.tokenizer.empty()) {
    user_error("evaluation.every ({}) needs data.tokenizer, which encodes the tasks' texts; set it", e.every);
  }
  if (c.parallel.virtual_stages > 1) {
    user_error(
        "evaluation.every ({}) needs stages of consecutive layers, but parallel.virtual_stages is {}; set "
        "evaluation.every to 0 and run te-generate evaluate with checkpoints",
        e.every, c.parallel.virtual_stages);
  }
}

void check_data(const Config& c) {
  const DataConfig& d = c.data;
  check_sources(d.train, "data.train");
  for (const ValidationSet& set : d.valid) check_sources(set.sources, "data.valid");
  if (d.synthetic && !d.train.empty()) {
    user_error(
        "data.synthetic and data.train are both given; set data.synthetic to false or data.train to []");
  }
  if (d.synthetic && !d.valid.empty()) {
    user_error(
        "data.synthetic and data.valid are both given; set data.synthetic to false or data.valid to []");
  }
  if (!d.synthetic && d.train.empty()) {
    user_error("data.train is missing; name a dataset created by te-data, or set data.synthetic to true");
  }
  if (d.synthetic && (d.format == DataFormat::instruct || d.document_mask || d.eod_mask_loss)) {
    user_error(
        "data.synthetic has no documents; leave out data.format, data.document_mask and "
        "data.eod_mask_loss, or set data.synthetic to false");
  }
  if (d.format == DataFormat::instruct && d.eod_mask_loss) {
    user_error(
        "data.eod_mask_loss is for data.format pretrain; instruct has no targets across conversations");
  }
  if (d.format == DataFormat::pretrain && d.overlong != Overlong::truncate) {
    user_error("data.overlong is for data.format instruct; pretrain splits documents at the end of a sample");
  }
  if (c.training.eval_interval > 0 && d.synthetic) {
    user_error(
        "training.eval_interval ({}) needs data.valid, which data.synthetic excludes; set eval_interval to 0",
        c.training.eval_interval);
  }
  if (c.training.eval_interval > 0 && d.valid.empty()) {
    user_error(
        "training.eval_interval ({}) needs data.valid, which is missing; give it, or set eval_interval to 0",
        c.training.eval_interval);
  }
  check_evaluation(c);
}

void check_output(const Config& c) {
  if (c.checkpoint.resume.empty()) user_error("checkpoint.resume is empty; it must be auto, never or a path");
  if (const std::string meant = resume_suggestion(c.checkpoint.resume); !meant.empty()) {
    user_error("checkpoint.resume: {} is neither auto, never nor a path; {} (a folder of that name is ./{})",
               in_quotes(c.checkpoint.resume), meant, c.checkpoint.resume);
  }
}

void check_statistics(const Config& c) {
  for (const std::string& name : c.logging.fp8_what_if) {
    Fp8Recipe recipe{};
    if (!from_string(name, recipe) || traits_of(recipe).history) {
      user_error(
          "logging.fp8_what_if: {} is not one of {} (delayed has no scale without a history; tensorwise "
          "shows its best case)",
          in_quotes(name), fmt::join(stateless_recipes(), ", "));
    }
  }
}

void check_guard(const Config& c) {
  const GuardConfig& g = c.guard;
  if (g.every == 0) return;
  if (c.precision.fp8 == Fp8Mode::off) {
    user_error("guard.every ({}) compares FP8 with BF16, but precision.fp8 is off: leave one of them out",
               g.every);
  }
  if (g.every == 1)
    user_error("guard.every (1) leaves no step between comparisons; set 0 (off), or 2 or more");
  if (g.compare_steps >= g.every)
    user_error("guard.compare_steps ({}) must be below guard.every ({})", g.compare_steps, g.every);
}

}  // namespace

void validate_for_device(const Config& config, bool cuda) {
  if (!cuda) return;
  if (config.precision.dtype == ComputeDType::fp32 && config.optimizer.main_grad_dtype != GradDType::fp32) {
    user_error(
        "optimizer.main_grad_dtype bf16 cannot be combined with precision.dtype fp32 on a GPU: GEMMs of FP32 "
        "matrices have FP32 results; set it to fp32");
  }
  // This limit and the next one are those of kernels/attention/attention.h.
  const int64_t head = config.model.kv_channels;
  if (head > 256 || head % 8 != 0) {
    user_error("model.kv_channels ({}) must be a multiple of 8 and at most 256 on a GPU", head);
  }
  if (config.model.seq_length > 65535 * 64) {
    user_error(
        "model.seq_length ({}) must be at most 4194240 on a GPU; use CPUs and parallel.context for longer "
        "sequences",
        config.model.seq_length);
  }
}

void validate(const Config& config) {
  check_ranges(config);
  check_model(config.model);
  check_rope_scaling(config);
  check_parallel(config);
  check_experts(config);
  check_shard(config);
  check_training(config);
  check_fp16(config);
  check_fp8(config);
  check_optimizer(config);
  check_adapter(config);
  check_data(config);
  check_samples(config);
  check_tasks(config);
  check_statistics(config);
  check_guard(config);
  check_output(config);
  if (config.training.device == DeviceChoice::cuda) validate_for_device(config, true);
}

}  // namespace te::config
