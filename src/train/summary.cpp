#include "train/summary.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "config/adapter.h"
#include "config/precision_overrides.h"
#include "config/recipe_traits.h"
#include "core/strings.h"
#include "optim/lr_schedule.h"
#include "train/flops.h"

namespace te::train {
namespace {

/// The rows of the parameter table: parameters of the whole model, independent of how ranks shard it.
std::map<std::string, int64_t> parameters_by_part(config::Config config) {
  config.parallel = {};
  model::ModelStage model(config);  // only describes its parameters
  std::map<std::string, int64_t> parts;
  for (const parameters::Parameter& parameter : model.parameters().parameters())
    parts[is_adapter(parameter.id.part) ? "adapters"
          : is_norm(parameter.id.role)  ? "norms"
                                        : std::string(to_string(parameter.id.role))] +=
        parameter.shape.numel();
  return parts;
}

/// The weights that are not trained, as this rank stores them between passes.
std::string base_line(const parameters::ParameterStore& parameters) {
  int64_t codes = 0, values = 0;
  for (const parameters::Parameter& parameter : parameters.parameters()) {
    const parameters::Bucket& bucket = parameters.buckets()[parameters.bucket_at(parameter.offset)];
    const int ranks = parameters.shards_values(bucket) ? parameters.layout().of(parameter.group).size : 1;
    const int64_t count = parameter.trainable ? 0 : parameter.shape.numel() / ranks;
    if (parameter.dropped)
      codes += count * (parameter.keeps_columnwise ? 2 : 1);
    else
      values += count;
  }
  const DType dtype = parameters.layout().dtype;
  const std::string high = fmt::format(
      "{} in {}", human_bytes(values * static_cast<int64_t>(dtype_size(dtype))), dtype_name(dtype));
  return fmt::format("base: {}{}\n", codes > 0 ? human_bytes(codes) + " in FP8, " : "", high);
}

/// What a run with an adapter trains; else empty. `whole`: all parameters.
std::string adapter_line(config::Config config, int64_t whole) {
  const config::AdapterConfig& adapter = config.adapter;
  if (!adapter.on()) return "";
  config.parallel = {};
  model::ModelStage model(config);
  int64_t trained = 0;
  for (const parameters::Parameter& parameter : model.parameters().parameters())
    trained += parameter.trainable ? parameter.shape.numel() : 0;
  return fmt::format("adapter: {}, rank {}, alpha {}: {} of {} parameters are trained\n",
                     to_string(adapter.type), adapter.rank, adapter.alpha, with_separators(trained),
                     with_separators(whole));
}

/// The steps in FP8, unless all are.
std::string schedule_line(const config::PrecisionConfig& precision) {
  const int64_t from = precision.fp8_from_step, until = precision.fp8_until_step;
  if (from <= 1 && until == 0) return "";
  const std::string steps = until == 0  ? fmt::format("from step {} on", from)
                            : from <= 1 ? fmt::format("up to step {}", until)
                                        : fmt::format("in steps {} to {}", from, until);
  return fmt::format("  FP8 {}, all other steps in {}\n", steps, to_string(precision.dtype));
}

}  // namespace

std::string device_summary(const Context& context) {
  const DeviceInfo info = context.info();
  if (context.is_cuda()) {
    return fmt::format("device: cuda:{} {}, {} SMs, {} ({} free)\n", context.ordinal(),
                       device_caps(context).gpu, info.num_sms, human_bytes(info.memory_bytes),
                       human_bytes(info.free_bytes));
  }
  return fmt::format("device: CPU {}, {} threads, {} of memory ({} free)\n", info.name, info.num_sms,
                     human_bytes(info.memory_bytes), human_bytes(info.free_bytes));
}

int64_t total_parameters(const config::Config& config) {
  int64_t count = 0;
  for (const auto& [part, parameters] : parameters_by_part(config)) count += parameters;
  return count;
}

std::string model_summary(const config::Config& config, const parameters::ParameterStore& parameters,
                          bool tables) {
  const config::ModelConfig& m = config.model;
  const int64_t whole = total_parameters(config), held = parameters.num_parameters();
  std::string text = fmt::format(
      "model: {}, {} parameters{}: {} layers, hidden {}, ffn {}, {} heads of {}", to_string(m.family),
      with_separators(whole), held == whole ? "" : fmt::format(" ({} on this rank)", with_separators(held)),
      m.num_layers, m.hidden_size, m.ffn_hidden_size, m.num_attention_heads, m.kv_channels);
  if (m.num_query_groups != m.num_attention_heads)
    text += fmt::format(" ({} query groups)", m.num_query_groups);
  text += fmt::format(", vocabulary {} (padded {}), sequence {}\n", m.vocab_size, m.padded_vocab_size(),
                      m.seq_length);
  text += adapter_line(config, whole);
  if (config.adapter.on()) text += base_line(parameters);
  if (!tables) return text;
  for (const auto& [part, count] : parameters_by_part(config))
    text += fmt::format("  {:<26}{:>16}\n", part, with_separators(count));
  if (m.num_moe_experts > 0) {
    int64_t unused = 0;
    for (int layer = 0; layer < m.num_layers; ++layer) {
      unused += m.feed_forward_weights(layer, false) - m.feed_forward_weights(layer, true);
      for (const LinearId& id : config::layer_linears(m, layer))
        if (id.expert >= 0)
          unused += (m.num_moe_experts - m.moe_router_topk) * adapter_parameters(config.adapter, m, id);
    }
    text += fmt::format("  {:<26}{:>16}  ({} of {} experts per token)\n", "active parameters",
                        with_separators(whole - unused), m.moe_router_topk, m.num_moe_experts);
  }
  return text;
}

std::string batch_summary(const config::Config& config) {
  const config::TrainingConfig& training = config.training;
  const int64_t batch = training.global_batch_size, tokens = batch * config.model.seq_length;
  return fmt::format(
      "batch: {} tokens per step: {} sequences of {}, microbatches of {}; {:.3g} GFLOP per token; {} steps\n",
      with_separators(tokens), batch, config.model.seq_length, training.micro_batch_size,
      flops_per_token(config) / 1e9, with_separators(training.train_steps));
}

namespace {

std::string loss_scale_text(const config::PrecisionConfig& precision) {
  if (precision.dtype != config::ComputeDType::fp16) return "";
  if (precision.loss_scale != 0.0) return fmt::format(", static loss scale {}", precision.loss_scale);
  return fmt::format(", dynamic loss scale from {}", precision.initial_loss_scale);
}

bool anything_in_fp8(const config::Config& config) {
  const int64_t layers = config.model.num_layers;
  for (const LinearKind linear : kLinearKinds)
    for (int layer = 0; layer < layers; ++layer)
      if (config::linear_precision(config.precision, {layer, linear}, layers).quantized()) return true;
  return false;
}

/// Whether at least one comparison covers only FP8 steps and ends within the run.
bool guard_compares(const config::Config& config) {
  const config::GuardConfig& guard = config.guard;
  const config::PrecisionConfig& precision = config.precision;
  for (int64_t step = guard.every; step + guard.compare_steps <= config.training.train_steps;
       step += guard.every)
    if (precision.fp8_in_step(step + 1) && precision.fp8_in_step(step + guard.compare_steps)) return true;
  return false;
}

// Warns about configs that claim FP8 but run none, whose results would be misread as FP8.
std::string fp8_notes(const config::Config& config) {
  const config::PrecisionConfig& precision = config.precision;
  const int64_t steps = config.training.train_steps;
  if (precision.fp8 == config::Fp8Mode::off) return "";
  std::string text;
  if (!anything_in_fp8(config)) {
    text += fmt::format(
        "  note: precision.fp8 is {}, but nothing runs in FP8: precision.first_layers_bf16, last_layers_bf16 "
        "and overrides leave all linears in {}\n",
        to_string(precision.fp8), to_string(precision.dtype));
  } else if (precision.fp8_from_step > steps) {
    text += fmt::format(
        "  note: precision.fp8_from_step ({}) is above training.train_steps ({}): no step runs in FP8\n",
        precision.fp8_from_step, steps);
  } else if (config.guard.every > 0 && !guard_compares(config)) {
    text += fmt::format(
        "  note: guard.every ({}) leaves no step of this run to compare: a comparison takes {} FP8 steps "
        "after a multiple of it, up to training.train_steps ({})\n",
        config.guard.every, config.guard.compare_steps, steps);
  }
  return text;
}

}  // namespace

std::string gather_summary(const parameters::ParameterStore& parameters) {
  struct Sizes {
    int64_t fp8 = 0, values = 0;
    std::string text() const {
      const std::string weights = fp8 > 0 ? human_bytes(fp8) + " of FP8 weights" : "";
      if (values == 0) return weights;
      return weights + (fp8 > 0 ? " and " : "") + human_bytes(values) +
             (fp8 > 0 ? " of other parameters" : " of parameters");
    }
  };
  struct Gathered {
    Sizes once, every;  ///< per step, and in passes
  };
  std::map<int, Gathered, std::greater<>> by_ranks;  // ranks of different gradient groups
  const auto value_size = static_cast<int64_t>(dtype_size(parameters.layout().dtype));
  for (const parameters::Bucket& bucket : parameters.buckets()) {
    const int ranks = parameters.layout().of(bucket.group).size;
    const bool shards = parameters.shards_values(bucket);
    if (ranks == 1 || (!bucket.trainable && !shards)) continue;
    Sizes& sizes = shards ? by_ranks[ranks].every : by_ranks[ranks].once;
    if (parameters.gathers_bytes(bucket))
      sizes.fp8 += bucket.size();
    else
      sizes.values += bucket.size() * value_size;
  }
  std::vector<std::string> parts;
  for (const auto& [ranks, gathered] : by_ranks) {
    const std::string once = gathered.once.text(), every = gathered.every.text();
    parts.push_back(fmt::format("{}{}{}{} over {} ranks", once, once.empty() ? "" : " once per step",
                                once.empty() || every.empty() ? "" : ", ",
                                every.empty() ? "" : every + " twice per microbatch", ranks));
  }
  return parts.empty() ? "" : fmt::format("gather: {}\n", fmt::join(parts, "; "));
}

std::string precision_summary(const config::Config& config, const Context& context) {
  const config::PrecisionConfig& precision = config.precision;
  const bool tf32 = precision.dtype == config::ComputeDType::fp32 && precision.tf32 && context.is_cuda();
  const std::string dtype =
      std::string(to_string(precision.dtype)) + (tf32 ? " with TF32 GEMMs" : "") + loss_scale_text(precision);
  const config::OptimizerConfig& optimizer = config.optimizer;
  const bool fp32_moments = optimizer.exp_avg_dtype == config::MomentDType::fp32 &&
                            optimizer.exp_avg_sq_dtype == config::MomentDType::fp32;
  const std::string moments =
      fp32_moments ? ""
                   : fmt::format("  Adam moments: exp_avg {}, exp_avg_sq {}\n",
                                 to_string(optimizer.exp_avg_dtype), to_string(optimizer.exp_avg_sq_dtype));
  if (precision.fp8 == config::Fp8Mode::off) {
    return fmt::format("precision: {}, FP32 master weights, FP8 off{}\n{}", dtype,
                       precision.fp8_calibrate ? " (calibrating)" : "", moments);
  }
  const std::optional<DType> own = config::traits_of(precision.fp8_recipe).format;
  const bool one_format = precision.fp8 == config::Fp8Mode::e4m3 || own.has_value();
  const std::string_view format = format_name(own.value_or(DType::e4m3));
  std::string text = fmt::format(
      "precision: {}, FP32 master weights; FP8 {} ({}): inputs and weights of the four linears of a layer "
      "{}, gradients {}, recipe {}\n",
      dtype, to_string(precision.fp8), one_format ? fmt::format("{} only", format) : "E4M3 and E5M2", format,
      one_format ? format : "E5M2", to_string(precision.fp8_recipe));
  const std::string emulated = config::emulated_recipes(precision, config.model.num_layers);
  if (!emulated.empty()) {
    text += fmt::format(
        "  {}: emulated (GEMMs multiply the rounded values in {}), so speed and memory are not those of the "
        "recipe\n",
        emulated, to_string(precision.dtype));
  }
  text += schedule_line(precision);
  if (precision.first_layers_bf16 + precision.last_layers_bf16 > 0) {
    text += fmt::format("  the first {} and the last {} layers stay in {}\n", precision.first_layers_bf16,
                        precision.last_layers_bf16, dtype);
  }
  if (!precision.overrides.empty())
    text += "  with precision.overrides:\n" + config::precision_table(precision, config.model.num_layers);
  text += moments;
  // The cost of quantization grows with the hidden size, the savings of FP8 GEMMs with its square. FP8 is faster at
  // hidden size 768 (GPT-2 124M) on an H200; narrower models were not measured.
  if (context.is_cuda() && config.model.hidden_size < 768 && emulated.empty()) {
    text += fmt::format(
        "  note: at hidden size {} quantization may take the time that FP8 GEMMs save; compare with "
        "precision.fp8 off\n",
        config.model.hidden_size);
  }
  return text;
}

std::string attention_summary(const config::Config& config, kernels::AttentionKernels attention,
                              const DeviceCaps& caps) {
  switch (attention) {
    case kernels::AttentionKernels::flash:
      return "attention: te-train's kernels for Hopper\n";
    case kernels::AttentionKernels::cudnn:
      return "attention: cuDNN's kernels\n";
    case kernels::AttentionKernels::cpu:
      return "";
    case kernels::AttentionKernels::tiled:
      break;
  }
  const config::ModelConfig& model = config.model;
  std::string what = fmt::format("{}, heads of {}", to_string(config.precision.dtype), model.kv_channels);
  if (model.attention_dropout > 0.0) what += ", attention dropout";
  if (model.sliding_window > 0) what += ", a sliding window";
  if (config.data.document_mask) what += ", documents";
  if (config.parallel.context > 1) what += ", context parallelism";
  if (config.training.deterministic) what += ", training.deterministic";
  // te-train's kernels for Hopper have every mask, but few head dimensions and no dropout.
  const bool by_head = caps.hopper_kernels && config.precision.dtype == config::ComputeDType::bf16 &&
                       model.attention_dropout == 0.0 && config.parallel.context == 1;
  // cuDNN has no deterministic backward pass for compute capability 10.
  const bool by_order = caps.sm / 10 == 10 && config.training.deterministic;
  return fmt::format(
      "attention: kernels on FP32 units\n"
      "  note: attention does not run on tensor cores, which are many times faster: neither te-train nor "
      "cuDNN has a kernel for all of {}{}\n",
      what,
      by_head    ? "; with heads of 64 or 128 (model.kv_channels), te-train has"
      : by_order ? "; with training.deterministic: false, cuDNN may have"
                 : "");
}

std::string experts_note(const config::ModelConfig& model, const DeviceCaps& caps) {
  std::string text;
  if (model.moe_router_force_load_balancing)
    text =
        "  note: model.moe_router_force_load_balancing is for benchmarks: tokens select experts in turn, so "
        "the model is of no use\n";
  if (caps.sm > 0 && !caps.hopper_kernels && model.num_moe_experts > 0)
    text += fmt::format(
        "  note: GEMMs of experts run on FP32 units, many times slower than tensor cores: {} has no kernels "
        "for them\n",
        caps.gpu);
  return text;
}

namespace {

bool uses_one_kernel(const std::vector<GemmUse>& uses) {
  return std::ranges::all_of(uses, [&](const GemmUse& use) { return use.kernels == uses.front().kernels; });
}

/// "fprop K1 (linear_fc1), K2 (linear_qkv); dgrad K2", or "K2" if all passes have the same kernels.
std::string kernels_by_pass(const std::vector<GemmUse>& uses) {
  if (uses_one_kernel(uses)) return std::string(te::to_string(uses.front().kernels));
  std::string text;
  for (const char* pass : {"fprop", "dgrad", "wgrad"}) {
    std::vector<GemmUse> of_pass;
    std::copy_if(uses.begin(), uses.end(), std::back_inserter(of_pass),
                 [&](const GemmUse& use) { return use.pass == pass; });
    for (const GemmUse& use : of_pass) {
      const bool first = &use == &of_pass.front();
      text += !first ? ", " : fmt::format("{}{} ", text.empty() ? "" : "; ", pass);
      text += te::to_string(use.kernels);
      if (of_pass.size() > 1) text += fmt::format(" ({})", fmt::join(use.linears, ", "));
    }
  }
  return text;
}

/// A note with the GEMMs that `kernels` compute and the remedy; empty if there are none.
std::string slow_gemm_note(const std::vector<GemmUse>& uses, kernels::GemmKernels kernels,
                           std::string_view remedy) {
  std::string gemms;
  for (const GemmUse& use : uses)
    if (use.kernels == kernels)
      gemms += fmt::format("{}{} of {}", gemms.empty() ? "" : ", ", use.pass, fmt::join(use.linears, ", "));
  return gemms.empty() ? "" : fmt::format("  note: slow GEMMs: {}: {}\n", gemms, remedy);
}

}  // namespace

std::string gemm_summary(const std::vector<GemmUse>& uses) {
  std::map<std::string, std::vector<GemmUse>> by_precision;
  for (const GemmUse& use : uses) by_precision[use.precision].push_back(use);
  std::string text;
  for (auto precision = by_precision.rbegin(); precision != by_precision.rend(); ++precision)
    text += fmt::format("{}{}: {}\n", text.empty() ? "gemm: " : "  ", precision->first,
                        kernels_by_pass(precision->second));
  return text +
         slow_gemm_note(uses, kernels::GemmKernels::cublaslt_fp32,
                        "FP32 does not run on tensor cores, which are many times faster; precision.tf32 and "
                        "precision.dtype: bf16 do") +
         slow_gemm_note(
             uses, kernels::GemmKernels::cublaslt_unaligned,
             "rows of the matrices are not multiples of 16 bytes, so TMA cannot load them; make the "
             "model's dimensions and model.make_vocab_size_divisible_by multiples of 16");
}

std::string config_notes(const config::Config& config) {
  const config::OptimizerConfig& optimizer = config.optimizer;
  const int64_t steps = config.training.train_steps;
  std::string text;
  if (optimizer.warmup_steps > steps) {
    text += fmt::format(
        "  note: optimizer.warmup_steps ({}) is above training.train_steps ({}): the run ends within the "
        "warmup, at a learning rate of {:.3g}\n",
        optimizer.warmup_steps, steps, optim::schedule_of(optimizer).at(steps));
  }
  return text + fp8_notes(config);
}

// Transfers in both directions overlap. What fits into the slots is prefetched during the passes.
std::string offload_summary(const MemoryPlan& plan, const config::Config& config) {
  if (config.optimizer.offload == config::Offload::none) return "";
  const auto moved = static_cast<double>(plan.total_host_bytes());
  const auto hidden = std::min(moved, static_cast<double>(plan.bytes(MemoryKind::offload_slots)));
  return fmt::format(
      "offload: {} in host memory, {} per rank; on a GPU about {:.2g} s per step, at {:.0f} GB/s in each "
      "direction (PCIe 5.0 x16, as on an H200)\n",
      config.optimizer.offload == config::Offload::moments ? "Adam moments"
                                                           : "FP32 master weights and Adam moments",
      human_bytes(plan.total_host_bytes()), (moved - hidden) / kHostLink, kHostLink / 1e9);
}

std::string memory_summary(const MemoryPlan& plan, const Context& context, bool tables) {
  std::string text = fmt::format("memory: {} planned", human_bytes(plan.total_bytes()));
  const char* separator = ": ";
  for (int kind = 0; kind < kMemoryKinds && !tables; ++kind) {
    const int64_t bytes = plan.bytes(static_cast<MemoryKind>(kind));
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", separator, to_string(static_cast<MemoryKind>(kind)), human_bytes(bytes));
    separator = ", ";
  }
  if (context.is_cuda())
    text += fmt::format("; {} with CUDA's own memory, of {}",
                        human_bytes(plan.total_bytes() + kCudaOverheadBytes),
                        human_bytes(context.info().memory_bytes));
  return text + "\n" + (tables ? plan.table() : "");
}

}  // namespace te::train
