#include "convert/layout.h"

#include <spdlog/fmt/fmt.h>

#include <initializer_list>
#include <utility>

namespace te::convert {
namespace {

using config::ModelConfig;
using Role = ParameterRole;

using RowOrder = std::shared_ptr<const std::vector<int64_t>>;

ParameterLayout same(const ParameterId& id, const std::string& theirs, std::vector<int64_t> shape) {
  return {id, shape, {{theirs, shape, Order::rows, nullptr}}};
}

ParameterLayout conv1d(const ParameterId& id, const std::string& theirs, int64_t out, int64_t in) {
  return {id, {out, in}, {{theirs, {in, out}, Order::transposed, nullptr}}};
}

ParameterLayout permuted(const ParameterId& id, const std::string& theirs, std::vector<int64_t> shape,
                         const RowOrder& order) {
  return {id, shape, {{theirs, shape, Order::permuted, order}}};
}

// --- orders of rows ----------------------------------------------------------------------------------------

// transformers' channel for each channel of a head, with partial RoPE. transformers rotates the first channels of a
// head, in pairs (i, i + pairs). te-train rotates the first `pairs` of the pairs (i, i + head / 2).
std::vector<int64_t> partial_rope_channels(const ModelConfig& m) {
  const int64_t half = m.kv_channels / 2, pairs = m.rotary_pairs(), unrotated = half - pairs;
  std::vector<int64_t> theirs(static_cast<size_t>(m.kv_channels));
  for (int64_t i = 0; i < half; ++i) {
    const bool rotated = i < pairs;
    theirs[static_cast<size_t>(i)] = rotated ? i : pairs + i;
    theirs[static_cast<size_t>(half + i)] = rotated ? pairs + i : pairs + unrotated + i;
  }
  return theirs;
}

// NanoChatForCausalLM rotates the pairs (i + head / 2, i).
std::vector<int64_t> swapped_halves(int64_t head) {
  std::vector<int64_t> theirs(static_cast<size_t>(head));
  for (int64_t i = 0; i < head; ++i) theirs[static_cast<size_t>(i)] = (i + head / 2) % head;
  return theirs;
}

// llama2.c rotates pairs of adjacent channels.
std::vector<int64_t> interleaved_rope_channels(int64_t head) {
  std::vector<int64_t> theirs(static_cast<size_t>(head));
  for (int64_t i = 0; i < head; ++i)
    theirs[static_cast<size_t>(i)] = i < head / 2 ? 2 * i : 2 * (i - head / 2) + 1;
  return theirs;
}

/// Rows of `heads` heads, each with its channels in the given order.
RowOrder heads_of(int64_t heads, const std::vector<int64_t>& channels) {
  std::vector<int64_t> rows;
  for (int64_t h = 0; h < heads; ++h)
    for (const int64_t channel : channels)
      rows.push_back(h * static_cast<int64_t>(channels.size()) + channel);
  return std::make_shared<const std::vector<int64_t>>(std::move(rows));
}

// GPT-NeoX: q, k and v of head 0, then q, k and v of head 1, and so on.
RowOrder head_by_head(const ModelConfig& m) {
  const std::vector<int64_t> channels = partial_rope_channels(m);
  std::vector<int64_t> rows;
  for (int64_t part = 0; part < 3; ++part)
    for (int64_t h = 0; h < m.num_attention_heads; ++h)
      for (int64_t c = 0; c < m.kv_channels; ++c)
        rows.push_back((3 * h + part) * m.kv_channels + (part < 2 ? channels[static_cast<size_t>(c)] : c));
  return std::make_shared<const std::vector<int64_t>>(std::move(rows));
}

// Phi-3: q | k | v, as in te-train.
RowOrder packed(const ModelConfig& m) {
  std::vector<int64_t> rows = *heads_of(m.num_attention_heads + m.num_query_groups, partial_rope_channels(m));
  while (static_cast<int64_t>(rows.size()) < m.qkv_width()) rows.push_back(static_cast<int64_t>(rows.size()));
  return std::make_shared<const std::vector<int64_t>>(std::move(rows));
}

// --- Llama and similar models ------------------------------------------------------------------------------

class Llama {
 public:
  Llama(const ModelConfig& m, Architecture architecture) : m_(m), architecture_(architecture) {
    result_.push_back(
        same({Role::word_embeddings}, "model.embed_tokens.weight", {m.vocab_size, m.hidden_size}));
    for (; layer_ < m.num_layers; ++layer_) {
      theirs_ = "model." + layer_name(layer_) + ".";
      attention();
      mlp();
      norms();
    }
    if (m.norm_gain) result_.push_back(same({Role::final_norm}, "model.norm.weight", {m.hidden_size}));
    if (!m.tie_word_embeddings)
      result_.push_back(same({Role::output_layer}, "lm_head.weight", {m.vocab_size, m.hidden_size}));
  }
  std::vector<ParameterLayout> result() && { return std::move(result_); }

 private:
  ParameterId weight(Role role) const { return {role, layer_}; }
  ParameterId bias(Role role) const { return {role, layer_, ParameterPart::bias}; }
  void add(const ParameterId& id, const std::string& theirs, std::vector<int64_t> shape) {
    result_.push_back(same(id, theirs_ + theirs, std::move(shape)));
  }

  /// Rows of q or k.
  Part rotated(const std::string& theirs, std::vector<int64_t> shape) const {
    Part part{theirs_ + "self_attn." + theirs, std::move(shape)};
    if (architecture_ != Architecture::nanochat) return part;
    part.order = Order::permuted;
    part.theirs = heads_of(part.rows() / m_.kv_channels, swapped_halves(m_.kv_channels));
    return part;
  }

  void attention() {
    const int64_t hidden = m_.hidden_size, q = m_.attention_width(),
                  kv = m_.num_query_groups * m_.kv_channels;
    const std::string attention = theirs_ + "self_attn.";
    if (m_.add_qkv_bias)
      result_.push_back(
          {bias(Role::linear_qkv),
           {q + 2 * kv},
           {rotated("q_proj.bias", {q}), rotated("k_proj.bias", {kv}), {attention + "v_proj.bias", {kv}}}});
    if (architecture_ == Architecture::phi3) {
      const std::string name = attention + "qkv_proj.weight";
      result_.push_back(m_.rotary_percent == 1.0
                            ? same(weight(Role::linear_qkv), name, {q + 2 * kv, hidden})
                            : permuted(weight(Role::linear_qkv), name, {q + 2 * kv, hidden}, packed(m_)));
    } else {
      result_.push_back({weight(Role::linear_qkv),
                         {q + 2 * kv, hidden},
                         {rotated("q_proj.weight", {q, hidden}),
                          rotated("k_proj.weight", {kv, hidden}),
                          {attention + "v_proj.weight", {kv, hidden}}}});
    }
    if (m_.add_proj_bias) add(bias(Role::linear_proj), "self_attn.o_proj.bias", {hidden});
    add(weight(Role::linear_proj), "self_attn.o_proj.weight", {hidden, q});
    if (!m_.qk_norm_gain()) return;
    const bool head = m_.qk_norm == config::QkNorm::head;
    add(weight(Role::q_norm), "self_attn.q_norm.weight", {head ? m_.kv_channels : q});
    add(weight(Role::k_norm), "self_attn.k_norm.weight", {head ? m_.kv_channels : kv});
  }

  // Each expert is a block of rows.
  void experts() {
    const int64_t hidden = m_.hidden_size, ffn = m_.moe_ffn_hidden_size, count = m_.num_moe_experts;
    const bool mixtral = architecture_ == Architecture::mixtral;
    const std::string mlp = mixtral ? "block_sparse_moe." : "mlp.";
    add(weight(Role::router), mlp + "gate.weight", {count, hidden});
    ParameterLayout fc1{weight(Role::experts_fc1), {count * 2 * ffn, hidden}, {}};
    ParameterLayout fc2{weight(Role::experts_fc2), {count * hidden, ffn}, {}};
    for (int64_t e = 0; e < count; ++e) {
      const std::string expert = fmt::format("{}{}experts.{}.", theirs_, mlp, e);
      fc1.parts.push_back({expert + (mixtral ? "w1.weight" : "gate_proj.weight"), {ffn, hidden}});
      fc1.parts.push_back({expert + (mixtral ? "w3.weight" : "up_proj.weight"), {ffn, hidden}});
      fc2.parts.push_back({expert + (mixtral ? "w2.weight" : "down_proj.weight"), {hidden, ffn}});
    }
    result_.push_back(std::move(fc1));
    result_.push_back(std::move(fc2));
    const int64_t shared = m_.moe_shared_expert_intermediate_size;
    if (shared == 0) return;
    const std::string theirs = theirs_ + mlp + "shared_expert.";
    result_.push_back(
        {weight(Role::shared_expert_fc1),
         {2 * shared, hidden},
         {{theirs + "gate_proj.weight", {shared, hidden}}, {theirs + "up_proj.weight", {shared, hidden}}}});
    add(weight(Role::shared_expert_fc2), mlp + "shared_expert.down_proj.weight", {hidden, shared});
    add(weight(Role::shared_expert_gate), mlp + "shared_expert_gate.weight", {1, hidden});
  }

  void mlp() {
    if (m_.has_experts(layer_)) return experts();
    const int64_t hidden = m_.hidden_size, ffn = m_.ffn_hidden_size;
    const std::string mlp = theirs_ + "mlp.";
    if (architecture_ == Architecture::nanochat) {
      add(weight(Role::linear_fc1), "mlp.fc1.weight", {ffn, hidden});
      return add(weight(Role::linear_fc2), "mlp.fc2.weight", {hidden, ffn});
    }
    if (m_.add_mlp_bias) {
      result_.push_back({bias(Role::linear_fc1),
                         {2 * ffn},
                         {{mlp + "gate_proj.bias", {ffn}}, {mlp + "up_proj.bias", {ffn}}}});
      add(bias(Role::linear_fc2), "mlp.down_proj.bias", {hidden});
    }
    if (architecture_ == Architecture::phi3) {
      add(weight(Role::linear_fc1), "mlp.gate_up_proj.weight", {2 * ffn, hidden});
    } else {
      result_.push_back(
          {weight(Role::linear_fc1),
           {2 * ffn, hidden},
           {{mlp + "gate_proj.weight", {ffn, hidden}}, {mlp + "up_proj.weight", {ffn, hidden}}}});
    }
    add(weight(Role::linear_fc2), "mlp.down_proj.weight", {hidden, ffn});
  }

  void norms() {
    if (!m_.norm_gain) return;
    if (architecture_ == Architecture::gemma3) {
      add(weight(Role::input_norm), "input_layernorm.weight", {m_.hidden_size});
      add(weight(Role::post_attention_norm), "post_attention_layernorm.weight", {m_.hidden_size});
      add(weight(Role::pre_mlp_norm), "pre_feedforward_layernorm.weight", {m_.hidden_size});
      add(weight(Role::post_mlp_norm), "post_feedforward_layernorm.weight", {m_.hidden_size});
    } else if (architecture_ == Architecture::olmo2) {
      add(weight(Role::post_attention_norm), "post_attention_layernorm.weight", {m_.hidden_size});
      add(weight(Role::post_mlp_norm), "post_feedforward_layernorm.weight", {m_.hidden_size});
    } else {
      add(weight(Role::input_norm), "input_layernorm.weight", {m_.hidden_size});
      add(weight(Role::pre_mlp_norm), "post_attention_layernorm.weight", {m_.hidden_size});
    }
  }

  const ModelConfig& m_;
  Architecture architecture_;
  int layer_ = 0;
  std::string theirs_;
  std::vector<ParameterLayout> result_;
};

// --- GPT-2, GPT-NeoX ---------------------------------------------------------------------------------------

std::vector<ParameterLayout> gpt(const ModelConfig& m, const std::string& prefix) {
  const int64_t hidden = m.hidden_size, ffn = m.ffn_hidden_size;
  std::vector<ParameterLayout> result;
  const auto norm = [&](Role role, int layer, const std::string& theirs) {
    result.push_back(same({role, layer}, theirs + ".weight", {hidden}));
    result.push_back(same({role, layer, ParameterPart::bias}, theirs + ".bias", {hidden}));
  };
  const auto linear = [&](Role role, int layer, const std::string& theirs, int64_t out, int64_t in) {
    result.push_back(conv1d({role, layer}, theirs + ".weight", out, in));
    result.push_back(same({role, layer, ParameterPart::bias}, theirs + ".bias", {out}));
  };
  result.push_back(same({Role::word_embeddings}, prefix + "wte.weight", {m.vocab_size, hidden}));
  result.push_back(
      same({Role::position_embeddings}, prefix + "wpe.weight", {m.max_position_embeddings, hidden}));
  for (int layer = 0; layer < m.num_layers; ++layer) {
    const std::string theirs = fmt::format("{}h.{}.", prefix, layer);
    norm(Role::input_norm, layer, theirs + "ln_1");
    linear(Role::linear_qkv, layer, theirs + "attn.c_attn", 3 * hidden, hidden);
    linear(Role::linear_proj, layer, theirs + "attn.c_proj", hidden, hidden);
    norm(Role::pre_mlp_norm, layer, theirs + "ln_2");
    linear(Role::linear_fc1, layer, theirs + "mlp.c_fc", ffn, hidden);
    linear(Role::linear_fc2, layer, theirs + "mlp.c_proj", hidden, ffn);
  }
  norm(Role::final_norm, kNoLayer, prefix + "ln_f");
  if (!m.tie_word_embeddings)
    result.push_back(same({Role::output_layer}, "lm_head.weight", {m.vocab_size, hidden}));
  return result;
}

std::vector<ParameterLayout> gpt_neox(const ModelConfig& m) {
  const int64_t hidden = m.hidden_size, ffn = m.ffn_hidden_size;
  std::vector<ParameterLayout> result;
  const auto both = [&](Role role, int layer, const std::string& theirs, std::vector<int64_t> shape) {
    result.push_back(same({role, layer, ParameterPart::bias}, theirs + ".bias", {shape[0]}));
    result.push_back(same({role, layer}, theirs + ".weight", std::move(shape)));
  };
  const RowOrder order = head_by_head(m);
  result.push_back(same({Role::word_embeddings}, "gpt_neox.embed_in.weight", {m.vocab_size, hidden}));
  for (int layer = 0; layer < m.num_layers; ++layer) {
    const std::string theirs = "gpt_neox." + layer_name(layer) + ".",
                      theirs_qkv = theirs + "attention.query_key_value";
    both(Role::input_norm, layer, theirs + "input_layernorm", {hidden});
    both(Role::pre_mlp_norm, layer, theirs + "post_attention_layernorm", {hidden});
    result.push_back(
        permuted({Role::linear_qkv, layer, ParameterPart::bias}, theirs_qkv + ".bias", {3 * hidden}, order));
    result.push_back(
        permuted({Role::linear_qkv, layer}, theirs_qkv + ".weight", {3 * hidden, hidden}, order));
    both(Role::linear_proj, layer, theirs + "attention.dense", {hidden, hidden});
    both(Role::linear_fc1, layer, theirs + "mlp.dense_h_to_4h", {ffn, hidden});
    both(Role::linear_fc2, layer, theirs + "mlp.dense_4h_to_h", {hidden, ffn});
  }
  both(Role::final_norm, kNoLayer, "gpt_neox.final_layer_norm", {hidden});
  if (!m.tie_word_embeddings)
    result.push_back(same({Role::output_layer}, "embed_out.weight", {m.vocab_size, hidden}));
  return result;
}

}  // namespace

std::vector<ParameterLayout> hugging_face_layout(const ModelConfig& model, Architecture architecture,
                                                 const std::string& prefix) {
  if (architecture == Architecture::gpt2) return gpt(model, prefix);
  if (architecture == Architecture::gpt_neox) return gpt_neox(model);
  return Llama(model, architecture).result();
}

std::vector<ParameterLayout> llama2c_layout(const ModelConfig& m) {
  std::vector<ParameterLayout> result = Llama(m, Architecture::llama).result();
  const auto rename = [&](const std::string& theirs) -> std::string {
    for (const auto& [name, short_name] :
         std::initializer_list<std::pair<const char*, const char*>>{{"embed_tokens", "token_embedding"},
                                                                    {"q_proj", "wq"},
                                                                    {"k_proj", "wk"},
                                                                    {"v_proj", "wv"},
                                                                    {"o_proj", "wo"},
                                                                    {"gate_proj", "w1"},
                                                                    {"down_proj", "w2"},
                                                                    {"up_proj", "w3"},
                                                                    {"input_layernorm", "rms_att"},
                                                                    {"post_attention_layernorm", "rms_ffn"},
                                                                    {"model.norm", "rms_final"},
                                                                    {"lm_head", "wcls"}}) {
      if (theirs.find(name) == std::string::npos) continue;
      const std::string layers = "model.layers.";
      if (!theirs.starts_with(layers)) return short_name;
      return fmt::format("{}.{}", short_name,
                         theirs.substr(layers.size(), theirs.find('.', layers.size()) - layers.size()));
    }
    return theirs;
  };
  for (ParameterLayout& parameter : result) {
    for (Part& part : parameter.parts) {
      part.name = rename(part.name);
      if (!part.name.starts_with("wq.") && !part.name.starts_with("wk.")) continue;
      part.order = Order::permuted;
      part.theirs = heads_of(part.rows() / m.kv_channels, interleaved_rope_channels(m.kv_channels));
    }
  }
  return result;
}

}  // namespace te::convert
