#include "convert/layout.h"

#include <spdlog/fmt/fmt.h>

namespace te::convert {
namespace {

using config::ModelConfig;

ParameterLayout same(const std::string& name, const std::string& theirs, std::vector<int64_t> shape) {
  return {name, shape, {{theirs, shape, Order::rows, 0}}};
}

ParameterLayout conv1d(const std::string& name, const std::string& theirs, int64_t out, int64_t in) {
  return {name, {out, in}, {{theirs, {in, out}, Order::transposed, 0}}};
}

std::vector<ParameterLayout> llama(const ModelConfig& m) {
  const int64_t hidden = m.hidden_size, ffn = m.ffn_hidden_size, head = m.kv_channels;
  const int64_t q = m.num_attention_heads * head, kv = m.num_query_groups * head;
  std::vector<ParameterLayout> result;
  result.push_back(
      same("embedding.word_embeddings.weight", "model.embed_tokens.weight", {m.vocab_size, hidden}));
  for (int64_t layer = 0; layer < m.num_layers; ++layer) {
    const std::string ours = fmt::format("layers.{}.", layer), theirs = "model." + ours;
    const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
    if (m.add_qkv_bias) {
      result.push_back({ours + "self_attention.linear_qkv.bias",
                        {q + 2 * kv},
                        {{attention + "q_proj.bias", {q}},
                         {attention + "k_proj.bias", {kv}},
                         {attention + "v_proj.bias", {kv}}}});
    }
    result.push_back({ours + "self_attention.linear_qkv.weight",
                      {q + 2 * kv, hidden},
                      {{attention + "q_proj.weight", {q, hidden}},
                       {attention + "k_proj.weight", {kv, hidden}},
                       {attention + "v_proj.weight", {kv, hidden}}}});
    result.push_back(
        same(ours + "self_attention.linear_proj.weight", attention + "o_proj.weight", {hidden, q}));
    result.push_back({ours + "mlp.linear_fc1.weight",
                      {2 * ffn, hidden},
                      {{mlp + "gate_proj.weight", {ffn, hidden}}, {mlp + "up_proj.weight", {ffn, hidden}}}});
    result.push_back(same(ours + "mlp.linear_fc2.weight", mlp + "down_proj.weight", {hidden, ffn}));
    result.push_back(same(ours + "input_layernorm.weight", theirs + "input_layernorm.weight", {hidden}));
    result.push_back(
        same(ours + "pre_mlp_layernorm.weight", theirs + "post_attention_layernorm.weight", {hidden}));
  }
  result.push_back(same("final_layernorm.weight", "model.norm.weight", {hidden}));
  if (!m.tie_word_embeddings)
    result.push_back(same("output_layer.weight", "lm_head.weight", {m.vocab_size, hidden}));
  return result;
}

std::vector<ParameterLayout> gpt(const ModelConfig& m, const std::string& prefix) {
  const int64_t hidden = m.hidden_size, ffn = m.ffn_hidden_size;
  std::vector<ParameterLayout> result;
  const auto norm = [&](const std::string& ours, const std::string& theirs) {
    for (const char* kind : {".weight", ".bias"})
      result.push_back(same(ours + kind, theirs + kind, {hidden}));
  };
  const auto linear = [&](const std::string& ours, const std::string& theirs, int64_t out, int64_t in) {
    result.push_back(conv1d(ours + ".weight", theirs + ".weight", out, in));
    result.push_back(same(ours + ".bias", theirs + ".bias", {out}));
  };
  result.push_back(same("embedding.word_embeddings.weight", prefix + "wte.weight", {m.vocab_size, hidden}));
  result.push_back(same("embedding.position_embeddings.weight", prefix + "wpe.weight",
                        {m.max_position_embeddings, hidden}));
  for (int64_t layer = 0; layer < m.num_layers; ++layer) {
    const std::string ours = fmt::format("layers.{}.", layer), theirs = fmt::format("{}h.{}.", prefix, layer);
    norm(ours + "input_layernorm", theirs + "ln_1");
    linear(ours + "self_attention.linear_qkv", theirs + "attn.c_attn", 3 * hidden, hidden);
    linear(ours + "self_attention.linear_proj", theirs + "attn.c_proj", hidden, hidden);
    norm(ours + "pre_mlp_layernorm", theirs + "ln_2");
    linear(ours + "mlp.linear_fc1", theirs + "mlp.c_fc", ffn, hidden);
    linear(ours + "mlp.linear_fc2", theirs + "mlp.c_proj", hidden, ffn);
  }
  norm("final_layernorm", prefix + "ln_f");
  if (!m.tie_word_embeddings)
    result.push_back(same("output_layer.weight", "lm_head.weight", {m.vocab_size, hidden}));
  return result;
}

}  // namespace

std::vector<ParameterLayout> hugging_face_layout(const ModelConfig& model, const std::string& prefix) {
  return model.family == config::Family::gpt ? gpt(model, prefix) : llama(model);
}

std::vector<ParameterLayout> llama2c_layout(const ModelConfig& m) {
  std::vector<ParameterLayout> result = llama(m);
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
      part.order = Order::interleaved;
      part.head = m.kv_channels;
    }
  }
  return result;
}

}  // namespace te::convert
