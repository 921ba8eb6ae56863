// Maps each parameter of te-train to the tensors of another program that it consists of. The same table serves both
// directions: import reads the parts of every parameter, export writes every part of it.
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
//   output_layer.weight (if not tied)      lm_head.weight                           lm_head.weight
//
//   layers.N.mlp.router.weight             mlp.gate (Mixtral: block_sparse_moe.gate)
//   layers.N.mlp.experts.linear_fc1.weight mlp.experts.E.gate_proj | up_proj of expert 0, expert 1, ... (w1 | w3)
//   layers.N.mlp.experts.linear_fc2.weight mlp.experts.E.down_proj of expert 0, expert 1, ... (w2)
//
// Qwen3, OLMo 2 and Gemma 3 have q_norm and k_norm (self_attention.q_layernorm, k_layernorm) in addition to Llama's
// tensors; the layer norms of OLMo 2 and Gemma 3 have other names. Phi-3 has qkv_proj and gate_up_proj, as te-train.
// GPT-NeoX has the same parts as GPT-2 under other names, not transposed, and stores q, k and v head by head.
// NanoChat has Llama's attention with the halves of the heads of q and k exchanged, mlp.fc1, mlp.fc2 and no norms.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "convert/architecture.h"
#include "core/parameter_id.h"

namespace te::convert {

/// Order of a parameter's rows in the other program's tensor.
enum class Order : uint8_t {
  rows,        ///< in the same order: [out, in]
  transposed,  ///< [in, out], as in GPT-2's Conv1D
  permuted     ///< other order: RoPE rotates other pairs of channels, or q, k and v are interleaved by head
};

/// A tensor of the other program: consecutive rows of a parameter.
struct Part {
  std::string name;
  std::vector<int64_t> shape;  ///< shape in the other program
  Order order = Order::rows;
  std::shared_ptr<const std::vector<int64_t>>
      theirs;  ///< Order::permuted: the other program's row of each row

  int64_t rows() const { return order == Order::transposed ? shape[1] : shape[0]; }
};

/// A parameter of te-train: the concatenation of its parts along the rows.
struct ParameterLayout {
  ParameterId id;
  std::vector<int64_t> shape;  ///< without the padding rows of the vocabulary
  std::vector<Part> parts;
  std::string name = id.name();

  int64_t rows() const { return shape[0]; }
  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
};

/// Parameters in the order in which transformers lists the tensors. `prefix` of GPT-2's names: "transformer." or empty.
std::vector<ParameterLayout> hugging_face_layout(const config::ModelConfig& model, Architecture architecture,
                                                 const std::string& prefix = "transformer.");

/// Llama under the names of llama2.c (export.py, version 0); the tensors of layer 3 are called "wq.3" and so on.
std::vector<ParameterLayout> llama2c_layout(const config::ModelConfig& model);

}  // namespace te::convert
