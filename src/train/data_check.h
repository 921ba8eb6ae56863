// Whether the datasets of a run are the model's, before its first step: data/dataset_check.h with the keys of the
// config.
#pragma once

#include "config/config.h"

namespace te::train {

/// One rank. UserError when data.tokenizer cannot be used (kept_tokenizer.h), when a dataset was made with another
/// tokenizer (unless data.check_tokenizer is false), or holds tokens that the model does not have.
void check_data(const config::Config& config);

}  // namespace te::train
