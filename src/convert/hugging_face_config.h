// config.json of Hugging Face transformers: read into te-train's model section, and written from it.
#pragma once

#include <filesystem>
#include <string>

#include "config/config.h"
#include "core/dtype.h"

namespace te::convert {

/// LlamaForCausalLM, Qwen2ForCausalLM, MistralForCausalLM (without a sliding window) and GPT2LMHeadModel; absent keys mean
/// what transformers takes for them. Every key that these classes read is either represented or has to have the value
/// that te-train implies; else UserError, one line: file, key, rule, mend. Keys that they do not read are not looked at.
config::ModelConfig read_hugging_face_config(const std::filesystem::path& file);

/// The text of config.json: LlamaForCausalLM, Qwen2ForCausalLM (where q, k, v have biases) or GPT2LMHeadModel. `dtype` is
/// that of the tensors; `kept` the config.json that came with the tokenizer, of which the ids of special tokens are
/// taken, or empty. UserError where transformers has no such model; `source` stands for the checkpoint.
std::string hugging_face_config(const config::ModelConfig& model, DType dtype,
                                const std::filesystem::path& kept, const std::string& source);

/// A config for the manifest of an imported checkpoint: the model, with synthetic data and one step, so that it is whole.
config::Config whole_config(const config::ModelConfig& model);

/// UserError with `source` in front when te-train cannot run the model (a range of a key, a combination).
void check_model(const config::ModelConfig& model, const std::string& source);

}  // namespace te::convert
