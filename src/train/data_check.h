// Whether the datasets of a run are the model's, before its first step: data/dataset_check.h with the keys of the
// config; and whether they are those of the checkpoint that it resumes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"

namespace te::train {

/// One rank. UserError when data.tokenizer cannot be used (kept_tokenizer.h), when a dataset was made with another
/// tokenizer (unless data.check_tokenizer is false), holds tokens that the model does not have, or is damaged.
/// checkpoint_directory: whose tokenizer is kept. Returns the datasets as a checkpoint names them.
std::vector<checkpoint::Dataset> check_data(const config::DataConfig& data, int64_t vocab_size,
                                            const std::string& checkpoint_directory);

/// UserError when a dataset of `now` was another one under the same prefix when `checkpoint` was saved; a warning where
/// it may be (data.check_fingerprint false).
void check_same_data(const std::string& checkpoint, const std::vector<checkpoint::Dataset>& saved,
                     const std::vector<checkpoint::Dataset>& now, bool refuse);

/// For a plan: opens and checks data and tokenizer as a run does, and returns lines about them. A dataset or tokenizer
/// that is not on this machine has a line that says so, because a run may be planned elsewhere; UserError, as in a run,
/// for one that is and cannot be used.
std::vector<std::string> check_planned_data(const config::Config& config);

}  // namespace te::train
