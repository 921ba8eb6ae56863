// config.json of Hugging Face transformers: read into te-train's model section, and written from it.
#pragma once

#include <filesystem>
#include <string>

#include "config/config.h"
#include "core/dtype.h"

namespace te::convert {

/// The model of a config.json of one of the classes of architecture.h; absent keys mean what transformers takes for
/// them. Every key is either represented, or has the value that te-train implies, or changes neither weights nor logits
/// (harmless_keys.h); else UserError, one line: file, key, rule, remedy. A null, {} or [] says nothing.
config::ModelConfig read_hugging_face_config(const std::filesystem::path& file);

/// The text of config.json, of the class that architecture_for() names. `dtype` is that of the tensors; `kept` the
/// config.json that came with the tokenizer, of which the ids of special tokens are taken, or empty. UserError where
/// transformers has no such model; `source` stands for the checkpoint. In hugging_face_config_write.cpp.
std::string hugging_face_config(const config::ModelConfig& model, DType dtype,
                                const std::filesystem::path& kept, const std::string& source);

/// A config for the manifest of an imported checkpoint: the model, with synthetic data and one step, so that it is
/// whole.
config::Config whole_config(const config::ModelConfig& model);

/// UserError with `source` in front when te-train cannot run the model (a range of a key, a combination).
void check_model(const config::ModelConfig& model, const std::string& source);

}  // namespace te::convert
