// The tokenizer that a run's checkpoints keep beside them, so that te-generate and te-convert export find it.
#pragma once

#include <filesystem>

#include "config/config.h"

namespace te::train {

/// UserError when data.tokenizer names a path without a tokenizer (unless the checkpoint directory keeps one already), a
/// tokenizer that te-data cannot read, or one with more tokens than the model.
void check_tokenizer(const config::Config& config);

/// Copies to checkpoint.directory what data.tokenizer names, else what is kept beside `origin` (the checkpoint the weights
/// came from; may be empty) or checkpoint.init_from. One rank, before the first step. UserError when it cannot be written.
void keep_tokenizer(const config::Config& config, const std::filesystem::path& origin);

}  // namespace te::train
