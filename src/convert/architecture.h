// The model classes of transformers that te-train has, and the one that each model of te-train is saved as.
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
  gpt2,
  gpt_neox
};

const char* class_name(Architecture architecture);  ///< "LlamaForCausalLM"
const char* model_type(Architecture architecture);  ///< "llama"

/// Of a config.json: by `architectures`, or where that is absent by `model_type`. A Mistral with layer_types is a
/// Ministral, as for transformers' Auto classes, which go by model_type. UserError for any other, and where the two
/// name different models.
Architecture architecture_of(const JsonKeys& keys);

/// The class that computes what the model does. UserError where transformers has none; `source` stands for the
/// checkpoint.
Architecture architecture_for(const config::ModelConfig& model, const std::string& source);

}  // namespace te::convert
