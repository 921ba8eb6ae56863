// Converts between the config.json of Hugging Face transformers and te-train's model section.
#pragma once

#include <filesystem>
#include <string>

#include "config/config.h"
#include "core/dtype.h"

namespace te::convert {

/// The model of a config.json of a class in architecture.h; absent keys have the defaults of transformers. Every key is
/// either represented, or has the value that te-train implies, or changes neither weights nor logits
/// (harmless_keys.h); otherwise UserError with one line: file, key, rule, remedy. null, {} and [] count as absent.
config::ModelConfig read_hugging_face_config(const std::filesystem::path& file);

/// The text of config.json for the class that architecture_for() returns. `dtype`: dtype of the tensors. `kept`: the
/// config.json that came with the tokenizer, from which the special token ids are copied, or empty. UserError if
/// transformers has no such model; the message starts with `source`. In hugging_face_config_write.cpp.
std::string hugging_face_config(const config::ModelConfig& model, DType dtype,
                                const std::filesystem::path& kept, const std::string& source);

/// A complete config for the manifest of an imported checkpoint: the model, with synthetic data and one step.
config::Config complete_config(const config::ModelConfig& model);

/// UserError that starts with `source` if te-train cannot run the model (range of a key, combination of keys).
void check_model(const config::ModelConfig& model, const std::string& source);

}  // namespace te::convert
