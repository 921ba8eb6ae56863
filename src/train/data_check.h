// Whether the datasets of a run are the model's, before its first step: data/dataset_check.h with the keys of the
// config.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace te::train {

/// One rank. UserError when data.tokenizer cannot be used (kept_tokenizer.h), when a dataset was made with another
/// tokenizer (unless data.check_tokenizer is false), or holds tokens that the model does not have.
/// checkpoint_directory: whose tokenizer is kept.
void check_data(const config::DataConfig& data, int64_t vocab_size, const std::string& checkpoint_directory);

}  // namespace te::train
