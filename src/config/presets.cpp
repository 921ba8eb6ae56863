#include "config/presets.h"

#include <array>
#include <string>
#include <vector>

#include "config/provenance.h"
#include "config/text.h"
#include "core/error.h"
#include "core/suggest.h"

namespace te::config {

namespace {

constexpr std::string_view kPrefix = "preset:";

struct Preset {
  std::string_view name;
  std::string_view title;
  std::string_view model;  ///< keys of the model section
};

// Sources: the models' config.json on Hugging Face. GPT-2's dropout (0.1) is omitted because it is a training setting.
// Llama 3.1, 3.2 and Mistral were finally trained with sequences of 128k, 128k and 32k tokens; the values here
// applied to most of their training.
constexpr auto kPresets = std::to_array<Preset>({
    {"gpt2", "GPT-2 124M",
     "family: gpt, num_layers: 12, hidden_size: 768, num_attention_heads: 12, vocab_size: 50257, seq_length: "
     "1024"},
    {"gpt2_medium", "GPT-2 355M",
     "family: gpt, num_layers: 24, hidden_size: 1024, num_attention_heads: 16, vocab_size: 50257, "
     "seq_length: 1024"},
    {"gpt2_large", "GPT-2 774M",
     "family: gpt, num_layers: 36, hidden_size: 1280, num_attention_heads: 20, vocab_size: 50257, "
     "seq_length: 1024"},
    {"gpt2_xl", "GPT-2 1.5B",
     "family: gpt, num_layers: 48, hidden_size: 1600, num_attention_heads: 25, vocab_size: 50257, "
     "seq_length: 1024"},
    {"tinyllama", "TinyLlama 1.1B",
     "family: llama, num_layers: 22, hidden_size: 2048, ffn_hidden_size: 5632, num_attention_heads: 32, "
     "num_query_groups: 4, vocab_size: 32000, seq_length: 2048"},
    {"llama2_7b", "Llama 2 7B",
     "family: llama, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 11008, num_attention_heads: 32, "
     "vocab_size: 32000, seq_length: 4096"},
    {"llama2_13b", "Llama 2 13B",
     "family: llama, num_layers: 40, hidden_size: 5120, ffn_hidden_size: 13824, num_attention_heads: 40, "
     "vocab_size: 32000, seq_length: 4096"},
    {"llama2_70b", "Llama 2 70B",
     "family: llama, num_layers: 80, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, "
     "num_query_groups: 8, vocab_size: 32000, seq_length: 4096"},
    {"llama3_8b", "Llama 3 8B",
     "family: llama, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0"},
    {"llama3_70b", "Llama 3 70B",
     "family: llama, num_layers: 80, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0"},
    {"llama3.1_8b", "Llama 3.1 8B",
     "family: llama, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0, "
     "rope_scaling: {rope_type: llama3, factor: 8.0}"},
    {"llama3.1_70b", "Llama 3.1 70B",
     "family: llama, num_layers: 80, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0, "
     "rope_scaling: {rope_type: llama3, factor: 8.0}"},
    {"llama3.2_1b", "Llama 3.2 1B",
     "family: llama, num_layers: 16, hidden_size: 2048, ffn_hidden_size: 8192, num_attention_heads: 32, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0, "
     "rope_scaling: {rope_type: llama3, factor: 32.0}, tie_word_embeddings: true"},
    {"llama3.2_3b", "Llama 3.2 3B",
     "family: llama, num_layers: 28, hidden_size: 3072, ffn_hidden_size: 8192, num_attention_heads: 24, "
     "num_query_groups: 8, vocab_size: 128256, seq_length: 8192, rope_theta: 500000.0, "
     "rope_scaling: {rope_type: llama3, factor: 32.0}, tie_word_embeddings: true"},
    {"mistral_7b", "Mistral 7B v0.3",
     "family: llama, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
     "num_query_groups: 8, vocab_size: 32768, seq_length: 8192, rope_theta: 1000000.0"},
    {"mixtral_8x7b", "Mixtral 8x7B",
     "family: llama, num_layers: 32, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, "
     "num_query_groups: 8, vocab_size: 32000, seq_length: 8192, rope_theta: 1000000.0, num_moe_experts: 8, "
     "moe_router_topk: 2, moe_aux_loss_coeff: 0.02"},
    {"qwen3_30b_a3b", "Qwen3 30B-A3B",
     "family: llama, num_layers: 48, hidden_size: 2048, ffn_hidden_size: 6144, num_attention_heads: 32, "
     "num_query_groups: 4, kv_channels: 128, vocab_size: 151936, seq_length: 4096, rope_theta: 1000000.0, "
     "norm_epsilon: 1.0e-6, qk_norm: head, num_moe_experts: 128, moe_router_topk: 8, moe_ffn_hidden_size: "
     "768, moe_aux_loss_coeff: 0.001"},
    {"olmoe_1b_7b", "OLMoE 1B-7B",
     "family: llama, num_layers: 16, hidden_size: 2048, ffn_hidden_size: 1024, num_attention_heads: 16, "
     "vocab_size: 50304, seq_length: 4096, qk_norm: projection, num_moe_experts: 64, moe_router_topk: 8, "
     "moe_router_norm_topk_prob: false, moe_aux_loss_coeff: 0.01, moe_z_loss_coeff: 0.001"},
    {"moe_40m_100m", "MoE 40M-100M",
     "family: llama, num_layers: 8, hidden_size: 384, ffn_hidden_size: 128, num_attention_heads: 6, "
     "vocab_size: 32768, seq_length: 1024, num_moe_experts: 64, moe_router_topk: 8, moe_aux_loss_coeff: "
     "0.01, moe_z_loss_coeff: 0.001"},
});

/// "did you mean 'llama3_8b'? ", or an empty string.
std::string nearest(std::string_view name) {
  NearestNames nearest;
  for (const Preset& preset : kPresets) nearest.add_if_near(name, preset.name);
  return nearest.empty() ? "" : nearest.question() + " ";
}

/// The required keys that a preset lacks.
const std::vector<std::string> kMinimalRun = {"training.micro_batch_size=1", "training.global_batch_size=1",
                                              "training.train_steps=1", "data.synthetic=true"};

}  // namespace

bool is_preset(std::string_view source) {
  return source.starts_with(kPrefix);
}

std::string_view preset_name(std::string_view source) {
  return source.substr(kPrefix.size());
}

std::string preset_yaml(std::string_view source, std::string_view where) {
  const std::string_view name = preset_name(source);
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return fmt::format("model: {{{}}}\n", preset.model);
  }
  user_error("{}there is no preset {}; {}te-train --list-presets shows all", where, key_name(name),
             nearest(name));
}

int64_t parameter_count(const ModelConfig& m, bool active) {
  const bool gpt = m.family == Family::gpt;
  const int64_t norm = (gpt ? 2 : m.norm_gain ? 1 : 0) * m.hidden_size;
  int64_t layer = m.hidden_size * (m.qkv_width() + m.attention_width()) + 2 * norm;
  if (gpt) layer += m.qkv_width() + m.fc1_width() + 2 * m.hidden_size;  // biases
  if (!gpt && m.add_qkv_bias) layer += m.qkv_width();
  if (m.qk_norm_gain()) {
    const bool head = m.qk_norm == QkNorm::head;
    layer += head ? 2 * m.kv_channels : m.attention_width() + m.num_query_groups * m.kv_channels;
  }
  int64_t feed_forward = 0;
  for (int64_t i = 0; i < m.num_layers; ++i) feed_forward += m.feed_forward_weights(i, active);
  const int64_t embedding = m.vocab_size * m.hidden_size;
  const int64_t positions = gpt ? m.max_position_embeddings * m.hidden_size : 0;
  return (m.tie_word_embeddings ? 1 : 2) * embedding + positions + m.num_layers * layer + feed_forward + norm;
}

std::vector<std::string> preset_sources() {
  std::vector<std::string> sources;
  for (const Preset& preset : kPresets) sources.push_back(fmt::format("{}{}", kPrefix, preset.name));
  return sources;
}

std::string describe_presets() {
  std::string text =
      fmt::format("{:<12} {:<16} {:>14} {:>6} {:>6} {:>6} {:>5} {:>6} {:>7} {:>6}\n", "preset", "model",
                  "parameters", "layers", "hidden", "ffn", "heads", "groups", "vocab", "tokens");
  for (const Preset& preset : kPresets) {
    const ModelConfig m =
        load_config({fmt::format("{}{}", kPrefix, preset.name)}, kMinimalRun, nullptr).model;
    text += fmt::format("{:<12} {:<16} {:>14} {:>6} {:>6} {:>6} {:>5} {:>6} {:>7} {:>6}\n", preset.name,
                        preset.title, parameter_count(m), m.num_layers, m.hidden_size, m.ffn_hidden_size,
                        m.num_attention_heads, m.num_query_groups, m.vocab_size, m.seq_length);
  }
  return text;
}

}  // namespace te::config
