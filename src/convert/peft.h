// PEFT's format of adapters: adapter_config.json and adapter_model.safetensors with lora_A [rank, in] and lora_B [out,
// rank] of each matrix, under the name of the matrix in transformers after "base_model.model.". Private to src/convert.
#pragma once

#include <filesystem>

#include "convert/adapter.h"

namespace te::convert {

bool is_peft_folder(const std::filesystem::path& path);

/// UserError if the folder has an adapter of another kind, or of another model.
Adapter open_peft(const std::filesystem::path& folder, const config::ModelConfig& model);

}  // namespace te::convert
