// Which tensors of another program a parameter of te-train is made of. One table serves both directions: import reads
// the parts of every parameter, export writes every part out of its parameter.
//
//   te-train                               Hugging Face Llama, Qwen2                GPT-2 (transformer.)
//   embedding.word_embeddings.weight       model.embed_tokens.weight                wte.weight
//   embedding.position_embeddings.weight                                            wpe.weight
//   layers.N.input_layernorm.*             model.layers.N.input_layernorm.*         h.N.ln_1.*
//   layers.N.self_attention.linear_qkv.*   self_attn.q_proj | k_proj | v_proj       attn.c_attn, transposed
//   layers.N.self_attention.linear_proj.*  self_attn.o_proj                         attn.c_proj, transposed
//   layers.N.pre_mlp_layernorm.*           post_attention_layernorm                 ln_2
//   layers.N.mlp.linear_fc1.*              mlp.gate_proj | mlp.up_proj              mlp.c_fc, transposed
//   layers.N.mlp.linear_fc2.*              mlp.down_proj                            mlp.c_proj, transposed
//   final_layernorm.*                      model.norm.weight                        ln_f.*
//   output_layer.weight (head not tied)    lm_head.weight                           lm_head.weight
//
// Qwen3 has q_norm and k_norm beside Llama's tensors (self_attention.q_layernorm, k_layernorm), OLMo 2 and Gemma 3,
// too, and their norms under other names; Phi-3 has qkv_proj and gate_up_proj, as te-train. GPT-NeoX has GPT-2's parts
// under names of its own, not transposed, and q, k and v head by head.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "convert/architecture.h"

namespace te::convert {

/// How the rows of a parameter lie in the other program's tensor.
enum class Order : uint8_t {
  rows,        ///< in the same order: [out, in]
  transposed,  ///< [in, out], as GPT-2's Conv1D has them
  permuted     ///< in another order: where RoPE pairs other channels of a head, or heads lie otherwise
};

/// A tensor of the other program: some consecutive rows of a parameter.
struct Part {
  std::string name;
  std::vector<int64_t> shape;  ///< of the other program's tensor
  Order order = Order::rows;
  std::shared_ptr<const std::vector<int64_t>> theirs;  ///< Order::permuted: their row, for each of ours

  int64_t rows() const { return order == Order::transposed ? shape[1] : shape[0]; }
};

/// A parameter of te-train: its parts, one below the other.
struct ParameterLayout {
  std::string name;
  std::vector<int64_t> shape;  ///< without rows that pad the vocabulary
  std::vector<Part> parts;

  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
};

/// In the order in which transformers lists the tensors. `prefix` is GPT-2's, "transformer." or nothing.
std::vector<ParameterLayout> hugging_face_layout(const config::ModelConfig& model, Architecture architecture,
                                                 const std::string& prefix = "transformer.");

/// Llama under the names of llama2.c (export.py, version 0), a layer's tensors as "wq.3".
std::vector<ParameterLayout> llama2c_layout(const config::ModelConfig& model);

}  // namespace te::convert
