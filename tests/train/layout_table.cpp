// The words that make up case names, and the cases of layout_mpi_test.cpp.
#include "layout_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

namespace te::testing {
namespace {

constexpr int kScaleBlock = 128;
constexpr auto selective = Recompute::selective, full = Recompute::full;

using Setting = void (*)(Case&);

const std::map<std::string_view, Setting>& settings_of_words() {
  static const std::map<std::string_view, Setting> words = {
      {"tp2", [](Case& c) { c.tensor = 2; }},
      {"tp4", [](Case& c) { c.tensor = 4; }},
      {"tp8", [](Case& c) { c.tensor = 8; }},
      {"pp2", [](Case& c) { c.pipeline = 2; }},
      {"pp4", [](Case& c) { c.pipeline = 4; }},
      {"pp8", [](Case& c) { c.pipeline = 8; }},
      {"cp2", [](Case& c) { c.context = 2; }},
      {"cp4", [](Case& c) { c.context = 4; }},
      {"cp8", [](Case& c) { c.context = 8; }},
      {"ep2", [](Case& c) { c.expert = 2; }},
      {"ep4", [](Case& c) { c.expert = 4; }},
      {"rounds", [](Case& c) { c.dispatch_factor = 0.3; }},
      {"sp", [](Case& c) { c.sequence = true; }},
      {"overlap", [](Case& c) { c.overlap = 2; }},
      {"gpt", [](Case& c) { c.family = Family::gpt; }},
      {"llama", [](Case& c) { c.family = Family::llama; }},
      {"qwen3", [](Case& c) { c.family = Family::llama, c.model_variant = ModelVariant::qwen3; }},
      {"olmo2", [](Case& c) { c.family = Family::llama, c.model_variant = ModelVariant::olmo2; }},
      {"gemma3", [](Case& c) { c.family = Family::llama, c.model_variant = ModelVariant::gemma3; }},
      {"nanochat", [](Case& c) { c.family = Family::llama, c.model_variant = ModelVariant::nanochat; }},
      {"experts", [](Case& c) { c.family = Family::llama, c.model_variant = ModelVariant::experts; }},
      {"neox", [](Case& c) { c.model_variant = ModelVariant::gpt_neox; }},
      {"biases", [](Case& c) { c.model_variant = ModelVariant::biases_window; }},
      {"pattern", [](Case& c) { c.model_variant = ModelVariant::window_pattern; }},
      {"bf16", [](Case& c) { c.precision = Precision::bf16; }},
      {"fp16", [](Case& c) { c.precision = Precision::fp16; }},
      {"delayed", [](Case& c) { c.precision = Precision::delayed; }},
      {"tensorwise", [](Case& c) { c.precision = Precision::tensorwise; }},
      {"rowwise", [](Case& c) { c.precision = Precision::rowwise; }},
      {"blockwise", [](Case& c) { c.precision = Precision::blockwise; }},
      {"mxfp8", [](Case& c) { c.precision = Precision::mxfp8; }},
      {"nvfp4", [](Case& c) { c.precision = Precision::nvfp4; }},
      {"native",  // must follow the recipe
       [](Case& c) {
         c.precision = c.precision == Precision::mxfp8 ? Precision::mxfp8_native : Precision::nvfp4_native;
       }},
      {"fp32",  // must follow the recipe
       [](Case& c) { c.precision = c.delayed() ? Precision::delayed_fp32 : Precision::tensorwise_fp32; }},
      {"1f1b", [](Case& c) { c.schedule = PipelineSchedule::one_f_one_b; }},
      {"gpipe", [](Case& c) { c.schedule = PipelineSchedule::gpipe; }},
      {"interleaved", [](Case& c) { c.schedule = PipelineSchedule::interleaved; }},
      {"zero", [](Case& c) { c.schedule = PipelineSchedule::zero_bubble; }},
      {"gradients", [](Case& c) { c.shard = config::Shard::gradients; }},
      {"parameters", [](Case& c) { c.shard = config::Shard::parameters; }},
      {"selective", [](Case& c) { c.recompute = Recompute::selective; }},
      {"full", [](Case& c) { c.recompute = Recompute::full; }},
      {"until", [](Case& c) { c.fp8_until = 2; }},
      {"blocking", [](Case& c) { c.data_overlap = false; }},
      {"dropout", [](Case& c) { c.dropout = true; }},
      {"lora", [](Case& c) { c.lora = true; }},
      {"noise", [](Case& c) { c.noise = true; }},
      {"muon", [](Case& c) { c.muon = true; }}};
  return words;
}

/// Words without effect: implied by other words, or set in `rest`.
bool has_no_effect(std::string_view word) {
  static const std::set<std::string_view> words = {
      "dp2",     "dp4",     "bubble", "sharded",   "window",    "one",   "rank",   "keys",
      "tied",    "variant", "split",  "chunks",    "groups",    "large", "shared", "share",
      "buckets", "layers",  "head",   "fp8",       "overrides", "grads", "of",     "two",
      "bytes",   "late",    "reduce", "recompute", "z",         "loss"};
  return words.contains(word);
}

}  // namespace

Case named(std::string_view name, Case rest) {
  Case c = std::move(rest);
  c.name = name;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = name.find('_', begin);
    const std::string_view word = name.substr(begin, end - begin);
    const auto found = settings_of_words().find(word);
    if (found != settings_of_words().end()) {
      found->second(c);
    } else if (!has_no_effect(word)) {
      throw std::logic_error(c.name + ": unknown word " + std::string(word));
    }
  }
  return c;
}

namespace {

std::vector<Case> one_rank() {
  return {
      named("one_rank", {.dropout = true}),
  };
}

std::vector<Case> two_ranks() {
  return {
      named("tp2_gpt"),
      named("tp2_llama_overlap", {.recompute = full, .variant = true}),
      named("tp2_sp_gpt_overlap_dropout", {.recompute = selective}),
      named("tp2_sp_llama", {.recompute = full}),
      named("pp2_gpt_1f1b", {.recompute = full, .layers = 5}),
      named("pp2_llama_gpipe_tied", {.variant = true}),
      named("pp2_llama_interleaved", {.recompute = selective, .layers = 5}),
      named("pp2_gpt_zero_bubble_dropout", {.layers = 5}),
      named("pp2_llama_split", {.layers = 5, .variant = true, .split = "4,1"}),
      named("pp2_gpt_interleaved_split", {.layers = 7, .dropout = true, .split = "1,3,2,1"}),
      named("pp2_llama_delayed_split",
            {.schedule = PipelineSchedule::zero_bubble, .layers = 5, .split = "1,4"}),
      named("pp2_gpt_zero_bubble_chunks_dropout", {.layers = 5, .chunks = 2}),
      named("pp2_llama_delayed_zero_bubble_chunks_split", {.layers = 7, .split = "1,3,2,1", .chunks = 2}),
      named("pp2_gpt_overrides_zero_bubble_chunks",
            {.precision = Precision::delayed,
             .overrides =
                 "linear_fc2 wgrad: bf16; linear_proj dgrad: bf16; layers -1: rowwise; layers 0: blockwise",
             .chunks = 2}),
      named("pp2_llama_bf16_zero_bubble_chunks_tied",
            {.layers = 6, .variant = true, .model_variant = ModelVariant::window_pattern, .chunks = 3}),
      named("dp2_gpt_dropout", {.recompute = selective}),
      named("dp2_llama_blocking", {.recompute = full}),
      named("dp2_gpt_grads_of_two_bytes", {.variant = true, .bf16_grads = true}),
      named("tp2_sp_llama_bf16"),
      named("pp2_gpt_bf16_zero_bubble"),
      named("tp2_sp_llama_fp16"),
      named("pp2_gpt_fp16_zero_bubble"),
      named("dp2_llama_fp16", {.recompute = selective}),
      named("tp2_gpt_delayed", {.recompute = full}),
      named("tp2_sp_llama_delayed_overlap", {.recompute = selective}),
      named("tp2_sp_gpt_tensorwise"),
      named("tp2_llama_tensorwise_overlap_fp32", {.recompute = selective}),
      named("pp2_gpt_delayed_zero_bubble", {.variant = true}),
      named("pp2_llama_tensorwise_interleaved", {.recompute = full}),
      named("pp2_llama_delayed_1f1b_fp32", {.recompute = selective}),
      named("tp2_sp_gpt_delayed_head_fp32", {.fp8_head = true}),
      named("pp2_gpt_delayed_head", {.fp8_head = true}),
      named("dp2_llama_delayed", {.bucket_size = 20'000}),
      named("dp2_gpt_tensorwise", {.recompute = full}),
      named("tp2_sp_llama_blockwise_overlap", {.recompute = selective}),
      named("tp2_gpt_rowwise_overlap", {.recompute = full}),
      named("pp2_llama_rowwise_zero_bubble"),
      named("tp2_sp_llama_overlap_lora"),
      named("tp2_gpt_lora", {.recompute = full}),
      named("pp2_llama_interleaved_lora", {.recompute = selective}),
      named("dp2_llama_parameters_lora"),
      named("cp2_llama_gradients_lora"),
      named("tp2_sp_llama_delayed_lora", {.recompute = selective}),
      named("tp2_gpt_rowwise_lora"),
      named("dp2_llama_blockwise_parameters_lora"),
      named("dp2_llama_tensorwise_lora", {.bucket_size = 20'000}),
      named("tp2_sp_llama_overlap_lora_noise"),
      named("tp2_gpt_delayed_lora_noise", {.recompute = full}),
      named("cp2_llama_lora_noise", {.recompute = selective}),
      named("dp2_llama_blockwise_gradients_lora"),
      named("dp2_llama_delayed_parameters_lora"),
      named("dp2_llama_rowwise_parameters_lora"),
      named("dp2_experts_delayed_sharded_parameters_lora"),
      named("cp2_llama_rowwise_lora"),
      named(
          "tp2_sp_llama_overrides",
          {.precision = Precision::delayed,
           .overrides = "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise"}),
      named("pp2_gpt_overrides_zero_bubble",
            {.precision = Precision::delayed,
             .overrides = "linear_fc2 wgrad: bf16; linear_proj dgrad: bf16; layers -1: rowwise"}),
      // One or two groups per rank: FP8 values are gathered with their scales.
      named("tp2_sp_gpt_blockwise_groups", {.recompute = selective, .layers = 2, .seq = 128}),
      named("tp2_sp_llama_blockwise_groups_overlap", {.layers = 2, .variant = true, .seq = 256}),
      named("dp2_gpt_blockwise", {.recompute = full}),
      named("tp2_sp_llama_mxfp8", {.recompute = selective, .layers = 2, .seq = 64}),
      named("pp2_gpt_mxfp8_zero_bubble", {.variant = true}),
      named("tp2_sp_llama_nvfp4", {.recompute = selective, .layers = 2}),
      named("pp2_gpt_nvfp4_zero_bubble", {.variant = true}),
      named("dp2_llama_nvfp4", {.recompute = full}),
      named("dp2_llama_mxfp8", {.bucket_size = 20'000}),
      named("tp2_sp_llama_nvfp4_native", {.recompute = selective, .layers = 2, .seq = 128}),
      named("pp2_gpt_mxfp8_native_zero_bubble", {.variant = true}),
      named("tp2_qwen3", {.recompute = full}),
      named("tp2_sp_qwen3_delayed", {.recompute = selective}),
      named("tp2_sp_llama_biases_window_overlap", {.recompute = selective}),
      named("tp2_sp_gpt_neox_overlap_dropout", {.recompute = selective}),
      named("pp2_gpt_neox_delayed_zero_bubble"),
      named("pp2_olmo2_zero_bubble"),
      named("pp2_olmo2_delayed_1f1b", {.recompute = selective}),
      named("tp2_sp_gemma3_overlap", {.recompute = selective, .variant = true, .lr = kSmallSteps}),
      named("pp2_gemma3_interleaved", {.recompute = full, .layers = 5}),
      named("pp2_gemma3_delayed_zero_bubble"),
      named("tp2_sp_gemma3_delayed"),
      named("cp2_gemma3", {.recompute = selective, .lr = kSmallSteps}),
      named("tp2_sp_nanochat", {.recompute = selective, .lr = kSmallSteps}),
      named("pp2_nanochat_interleaved", {.recompute = full, .layers = 5}),
      named("tp2_sp_nanochat_delayed"),
      named("cp2_nanochat", {.recompute = selective}),
      named("cp2_nanochat_keys_delayed", {.groups = 1}),
      // The last unit of parameters is empty.
      named("dp2_nanochat_sharded_parameters_tied", {.variant = true}),
      named("cp2_gemma3_keys", {.groups = 1, .lr = kSmallSteps}),
      // The norm of queries and keys covers the heads of all tensor-parallel ranks.
      named("tp2_olmo2", {.recompute = full, .lr = kSmallSteps}),
      named("tp2_sp_olmo2_overlap", {.recompute = selective, .lr = kSmallSteps}),
      named("tp2_sp_olmo2_delayed"),
      named("tp2_olmo2_tensorwise", {.recompute = selective}),
      named("tp2_sp_olmo2_blockwise", {.recompute = full}),
      // Sharded gradients and weights; sharding_mpi_test.cpp compares these settings with each other.
      named("dp2_gpt_sharded_gradients_dropout", {.recompute = selective}),
      named("dp2_llama_sharded_parameters_delayed", {.recompute = full}),
      named("cp2_llama_sharded_parameters"),
      // Context parallelism: all-to-all of heads, or all-gather of keys and values if there are fewer query groups than
      // ranks.
      named("cp2_gpt_dropout", {.recompute = selective}),
      named("cp2_llama", {.recompute = full, .variant = true}),
      named("cp2_llama_keys", {.recompute = full, .groups = 1}),
      named("cp2_gpt_keys_dropout", {.groups = 1}),
      named("cp2_llama_biases_window", {.recompute = selective}),
      named("cp2_llama_keys_biases_window", {.groups = 1}),
      named("pp2_llama_window_pattern_interleaved", {.layers = 5}),
      named("cp2_llama_keys_window_pattern", {.recompute = full, .groups = 1}),
      named("cp2_qwen3"),
      named("cp2_olmo2_keys_delayed", {.recompute = selective, .groups = 1}),
      named("cp2_gpt_neox_dropout", {.recompute = full}),
      named("cp2_gpt_bf16"),
      named("cp2_llama_keys_bf16", {.groups = 1}),
      named("cp2_gpt_delayed", {.recompute = selective}),
      named("cp2_llama_keys_delayed", {.groups = 1}),
      named("cp2_llama_tensorwise", {.recompute = full}),
      named("cp2_llama_rowwise"),
      named("cp2_gpt_blockwise", {.recompute = full}),
      named("cp2_llama_mxfp8"),
      named("cp2_llama_nvfp4", {.recompute = selective}),
      named(
          "cp2_llama_overrides",
          {.precision = Precision::delayed,
           .overrides = "linear_fc2 input: bf16; linear_qkv wgrad: bf16; layers 0 linear_proj: tensorwise"}),
      named("tp2_sp_llama_z_loss", {.z_loss = 0.02}),
      named("pp2_gpt_z_loss", {.schedule = PipelineSchedule::zero_bubble, .z_loss = 0.02}),
      named("dp2_llama_delayed_z_loss", {.z_loss = 0.02}),
      named("dp2_gpt_z_loss", {.z_loss = 0.02}),
      named("tp2_gpt_muon"),
      named("tp2_sp_llama_muon_variant", {.variant = true}),
      named("tp2_sp_llama_delayed_muon"),
      named("pp2_llama_muon", {.layers = 5}),
      named("dp2_experts_selective"),
      named("dp2_experts_sharded_gradients_muon"),
      named("dp2_experts_sharded_parameters_full"),
      named("pp2_experts_interleaved", {.layers = 5}),
      named("dp2_experts_delayed_selective"),
      named("dp2_experts_tensorwise_sharded_parameters"),
      named("pp2_experts_delayed"),
      named("pp2_experts_zero_bubble"),
      named("pp2_experts_delayed_zero_bubble_chunks", {.layers = 5, .chunks = 2}),
      named("pp2_experts_interleaved_bf16_selective"),
      named("pp2_experts_tensorwise_full"),
      named("dp2_experts_bf16"),
      named("cp2_experts"),
      named("cp2_ep2_experts_tensorwise"),
      named("cp2_keys_experts_delayed_selective"),
      named("cp2_ep2_experts_bf16_full"),
      named("tp2_sp_experts"),
      named("tp2_sp_experts_overlap_sharded_parameters_muon_selective"),
      named("tp2_sp_experts_full"),
      // Sums of ranks in BF16 move a token to another expert, and the amax of an expert with it.
      named("tp2_sp_experts_delayed_fp32"),
      named("tp2_sp_experts_tensorwise_sharded_parameters"),
      named("tp2_sp_experts_sharded_parameters_lora"),
      named("tp2_sp_ep2_experts_selective_lora"),
      named("dp2_experts_sharded_gradients_lora"),
      named("dp2_experts_delayed_lora"),
      named("pp2_experts_interleaved_full_lora", {.layers = 5}),
      named("cp2_ep2_experts_tensorwise_lora"),
      named("dp2_ep2_experts_lora"),
      named("dp2_ep2_experts_rounds_selective_lora"),
      named("dp2_ep2_experts_sharded_parameters_full_bf16_lora"),
      named("dp2_ep2_experts_rounds_delayed_lora"),
      named("dp2_experts_lora_noise"),
      named("dp2_ep2_experts_rounds_selective_lora_noise"),
      named("tp2_sp_ep2_experts_overlap_lora_noise"),
      named("cp2_ep2_experts_full_lora_noise"),
      named("pp2_experts_lora_noise"),
      named("tp2_sp_ep2_experts"),
      named("tp2_sp_experts_bf16_selective"),
      named("tp2_sp_ep2_experts_bf16"),
      named("tp2_sp_ep2_experts_rounds_bf16_full"),
      named("tp2_sp_ep2_experts_delayed_fp32"),
      named("tp2_sp_ep2_experts_tensorwise"),
      named("tp2_sp_ep2_experts_rounds_tensorwise_selective"),
      named("tp2_sp_ep2_experts_rounds_delayed_selective_fp32"),
      named("tp2_sp_ep2_experts_sharded_gradients_muon"),
      named("dp2_ep2_experts"),
      named("dp2_ep2_experts_rounds_selective"),
      named("dp2_ep2_experts_sharded_gradients_muon"),
      named("dp2_ep2_experts_sharded_parameters_full"),
      named("dp2_ep2_experts_rounds_full_bf16"),
      named("dp2_ep2_experts_delayed_selective_fp32"),
      named("dp2_ep2_experts_rounds_delayed"),
      named("dp2_ep2_experts_tensorwise_sharded_parameters"),
      named("dp2_ep2_experts_rounds_tensorwise_selective"),
      named("dp2_ep2_experts_rounds_delayed_until"),
      // Scales of blocks need experts with multiples of 128 rows.
      named("pp2_experts_blockwise_zero_bubble", {.layers = 2, .hidden = kScaleBlock}),
      named("tp2_sp_ep2_experts_blockwise_selective", {.layers = 2, .hidden = kScaleBlock}),
      named("dp2_ep2_experts_rounds_blockwise", {.layers = 2, .hidden = kScaleBlock}),
      named("dp2_ep2_experts_sharded_parameters_blockwise_full", {.layers = 2, .hidden = kScaleBlock}),
      named("dp2_ep2_experts_blockwise_until", {.layers = 2, .hidden = kScaleBlock}),
      named("dp2_gpt_muon"),
      named("dp2_llama_muon_large_buckets", {.bucket_size = 20'000}),
      named("dp2_llama_bf16_muon", {.bf16_grads = true}),
      named("dp2_llama_muon_sharded_gradients"),
      named("dp2_gpt_muon_sharded_parameters"),
  };
}

std::vector<Case> four_ranks() {
  return {
      named("tp4_llama"),
      named("tp4_sp_gpt_overlap", {.recompute = full}),
      named("tp4_sp_llama", {.recompute = selective, .variant = true}),
      named("tp4_gpt_overlap_dropout"),
      named("pp4_gpt_gpipe", {.layers = 5, .dropout = true}),
      named("pp4_llama_1f1b", {.recompute = selective, .layers = 6}),
      named("pp4_llama_zero_bubble_split", {.layers = 8, .split = "2,1,3,2"}),
      named("pp4_gpt_1f1b_split", {.recompute = full, .layers = 7, .split = "1,3,1,2"}),
      named("pp4_gpt_interleaved", {.recompute = full, .layers = 9}),
      named("pp4_llama_zero_bubble_tied", {.layers = 6, .variant = true}),
      named("pp4_llama_zero_bubble_chunks_tied", {.layers = 9, .variant = true, .chunks = 2}),
      named("tp2_pp2_sp_gpt_zero_bubble_chunks", {.overlap = 2, .layers = 5, .chunks = 2}),
      named("tp2_pp2_sp_llama_blockwise_zero_bubble_chunks", {.chunks = 2}),
      named("dp2_pp2_gpt_sharded_gradients_zero_bubble_chunks", {.chunks = 2}),
      named("dp2_pp2_llama_zero_bubble_chunks", {.layers = 5, .bucket_size = 15'000, .chunks = 2}),
      named("cp2_pp2_llama_tensorwise_zero_bubble_chunks", {.chunks = 2}),
      named("tp2_pp2_sp_gpt_zero_bubble", {.overlap = 2, .layers = 5}),
      named("tp2_pp2_sp_llama_interleaved", {.recompute = full, .layers = 5, .variant = true}),
      named("tp2_pp2_llama_1f1b", {.overlap = 2, .recompute = selective}),
      named("tp2_pp2_gpt_gpipe_dropout"),
      named("tp2_dp2_gpt", {.recompute = full, .bucket_size = 10'000}),
      named("tp2_dp2_sp_llama", {.overlap = 2}),
      named("dp2_pp2_gpt_gpipe"),
      named("dp2_pp2_llama_interleaved", {.variant = true}),
      named("dp2_pp2_gpt_zero_bubble", {.dropout = true, .bucket_size = 15'000}),
      named("dp4_llama_1f1b_blocking", {.recompute = selective}),
      named("tp4_sp_llama_delayed"),
      named("tp2_pp2_sp_llama_blockwise_zero_bubble"),
      named("tp2_dp2_gpt_rowwise"),
      named("tp2_dp2_gpt_sharded_parameters_mxfp8"),
      named("tp2_dp2_gpt_sharded_parameters_nvfp4"),
      named("tp4_gpt_tensorwise", {.recompute = full}),
      named("pp4_gpt_delayed_interleaved", {.layers = 8, .variant = true}),
      named("pp4_llama_tensorwise_1f1b", {.recompute = full, .layers = 5}),
      named("tp2_pp2_sp_gpt_delayed_zero_bubble"),
      named("tp2_dp2_sp_gpt_tensorwise", {.recompute = selective}),
      named("tp2_dp2_llama_delayed", {.overlap = 2}),
      named("tp2_dp2_sp_gpt_sharded_parameters", {.overlap = 2}),
      named("tp2_dp2_llama_sharded_parameters_tensorwise"),
      named("dp2_pp2_gpt_sharded_gradients_zero_bubble"),
      named("dp2_pp2_llama_sharded_parameters_1f1b", {.recompute = full, .variant = true}),
      named("tp2_pp2_sp_qwen3_zero_bubble", {.layers = 5}),
      named("dp2_pp2_olmo2_interleaved", {.recompute = full}),
      named("tp4_olmo2", {.lr = kSmallSteps}),
      named("tp2_pp2_sp_olmo2_zero_bubble", {.layers = 5, .lr = kSmallSteps}),
      named("tp2_dp2_olmo2_sharded_parameters_rowwise"),
      named("cp2_tp2_sp_olmo2_keys", {.recompute = full, .lr = kSmallSteps}),
      named("cp4_gpt_dropout", {.recompute = full}),
      named("cp4_llama_keys", {.recompute = selective}),
      named("cp2_tp2_sp_gpt_overlap_dropout", {.recompute = selective}),
      named("cp2_tp2_sp_llama_keys", {.variant = true}),
      named("cp2_pp2_gpt_zero_bubble_dropout", {.layers = 5}),
      named("cp2_pp2_llama_keys_zero_bubble", {.groups = 1}),
      named("cp2_pp2_llama_interleaved_tied", {.recompute = full, .layers = 5, .variant = true}),
      named("cp2_pp2_gpt_gpipe"),
      named("cp2_dp2_gpt_dropout", {.bucket_size = 10'000}),
      named("cp2_dp2_llama_keys_blocking", {.recompute = selective, .groups = 1}),
      named("cp4_gpt_delayed"),
      named("cp4_llama_keys_tensorwise", {.recompute = selective}),
      named("cp2_tp2_sp_llama_keys_delayed"),
      named("cp2_tp2_gpt_blockwise"),
      named("cp2_pp2_llama_tensorwise_zero_bubble"),
      named("cp2_dp2_gpt_rowwise", {.recompute = full}),
      named("cp2_dp2_llama_delayed"),
      named("tp2_dp2_sp_llama_z_loss_muon", {.z_loss = 0.02}),
      named("tp4_gpt_muon"),
      named("dp4_llama_muon"),
      named("cp2_dp2_ep4_experts_rounds"),
      named("cp2_dp2_ep2_experts_sharded_gradients_delayed_fp32"),
      named("tp2_dp2_sp_experts_sharded_gradients"),
      named("tp2_dp2_sp_ep4_experts_rounds"),
      named("tp2_dp2_sp_ep2_experts_sharded_parameters_delayed_fp32"),
      named("tp2_dp2_sp_ep4_experts_bf16"),
      named("tp2_dp2_sp_ep2_experts_sharded_gradients_tensorwise"),
      named("tp2_pp2_sp_ep2_experts_interleaved"),
      named("pp2_dp2_ep2_experts_rounds_zero_bubble"),
      named("tp2_pp2_sp_ep2_experts_bf16"),
      named("tp2_pp2_sp_experts_tensorwise"),
      named("tp2_cp2_sp_experts_selective"),
      named("dp4_ep4_experts_rounds"),
      // In some passes one pair of expert-parallel ranks has two rounds and the other one.
      named("tp4_sp_ep2_experts_tensorwise_selective", {.dispatch_factor = 1.1}),
      named("dp4_ep2_experts_sharded_gradients_lora"),
      named("tp2_dp2_sp_llama_blockwise_parameters_lora"),
      named("pp2_dp2_llama_rowwise_parameters_lora"),
      named("tp2_dp2_sp_ep4_experts_rounds_lora_noise"),
      named("dp4_ep2_experts_sharded_parameters_delayed_fp32"),
      named("dp4_ep2_experts_sharded_gradients_muon_selective"),
      named("dp4_ep4_experts_bf16_full"),
      named("dp4_ep2_experts_sharded_gradients_tensorwise"),
      named("dp2_pp2_ep2_experts_interleaved", {.layers = 5}),
      named("dp2_pp2_ep2_experts_rounds_gpipe_full_delayed"),
  };
}

std::vector<Case> eight_ranks() {
  return {
      named("tp8_sp_gpt"),
      named("pp8_llama_1f1b", {.layers = 8}),
      named("cp8_llama_keys"),
      named("cp2_tp2_pp2_sp_llama_keys_zero_bubble"),
      named("cp2_tp2_dp2_sp_gpt_delayed"),
      named("tp2_pp2_dp2_sp_gpt_1f1b", {.overlap = 2, .layers = 5, .dropout = true}),
      named("tp2_pp2_dp2_llama_gpipe", {.recompute = full, .variant = true}),
      named("tp2_pp2_dp2_sp_llama_interleaved", {.recompute = selective, .layers = 6}),
      named("tp2_pp2_dp2_gpt_zero_bubble", {.overlap = 2, .data_overlap = false}),
      named("tp2_pp2_dp2_sp_llama_delayed_interleaved", {.recompute = full}),
      named("tp2_pp2_dp2_sp_llama_sharded_parameters", {.schedule = PipelineSchedule::interleaved}),
      named("tp2_pp2_dp2_gpt_tensorwise_zero_bubble"),
      named("tp2_pp2_dp2_sp_llama_z_loss_muon", {.z_loss = 0.02}),
  };
}

}  // namespace

std::vector<Case> cases_of(int ranks) {
  switch (ranks) {
    case 1:
      return one_rank();
    case 2:
      return two_ranks();
    case 4:
      return four_ranks();
    case 8:
      return eight_ranks();
    default:
      return {};
  }
}

std::vector<Case> with_copies(std::vector<Case> cases) {
  const size_t count = cases.size();
  int multiple = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!cases[i].sequence || cases[i].tensor == 1) continue;
    Case c = cases[i];
    c.name += "_copies";
    c.copies = true;
    // FP8 needs chunks of at least 16 tokens, out of 64.
    c.overlap = multiple == 0 ? 1 : std::min(multiple * c.tensor, c.wide() ? 4 / c.context : 8);
    multiple = (multiple + 1) % 3;
#ifdef __SANITIZE_ADDRESS__
    cases[i] = c;  // instead of both, which differ in the transport only
#else
    cases.push_back(c);
#endif
  }
  return cases;
}

}  // namespace te::testing
