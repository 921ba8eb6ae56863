// The model classes of transformers that te-train supports, and the class that a te-train model is exported as.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "convert/json_keys.h"

namespace te::convert {

enum class Architecture : uint8_t {
  llama,
  qwen2,
  qwen3,
  mistral,
  ministral,
  olmo2,
  phi3,
  gemma3,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  olmoe,
  nanochat,
  gpt2,
  gpt_neox
};

const char* class_name(Architecture architecture);  ///< "LlamaForCausalLM"
const char* model_type(Architecture architecture);  ///< "llama"

/// True for mixtures of experts.
bool has_experts(Architecture architecture);

/// The architecture of a config.json, from `architectures` or, if that is absent, from `model_type`. A Mistral with
/// layer_types is a Ministral, as for transformers' Auto classes, which use model_type. UserError for an unknown
/// architecture, and if the two keys name different models.
Architecture architecture_of(const JsonKeys& keys);

/// The class that computes the same function as the model. UserError if transformers has none; the message starts with
/// `source`, the name of the checkpoint.
Architecture architecture_for(const config::ModelConfig& model, const std::string& source);

}  // namespace te::convert
