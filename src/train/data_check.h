// Checks before the first step that the datasets fit the model (data/dataset_check.h, with the config's keys) and are
// the ones that the resumed checkpoint was trained on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "config/config.h"

namespace te::train {

/// "3 documents, 40 tokens, xxh3:..."
std::string content_of(const checkpoint::Dataset& dataset);

/// Called on one rank. UserError when data.tokenizer cannot be used (kept_tokenizer.h), or a dataset was made with
/// another tokenizer (unless data.check is false), has token IDs beyond the vocabulary, or is damaged.
/// Returns the datasets as a checkpoint records them.
std::vector<checkpoint::Dataset> check_data(const config::DataConfig& data, int64_t vocab_size,
                                            const std::filesystem::path& kept_tokenizer);

/// The file with the tokens of a dataset, as the same text for all spellings of its path.
std::string data_file_of(const std::string& prefix);

/// UserError when a dataset in `now` differs from the one of the same path in `checkpoint`. With `refuse` false
/// (data.check), a warning.
void check_same_data(const std::string& checkpoint, const std::vector<checkpoint::Dataset>& saved,
                     const std::vector<checkpoint::Dataset>& now, bool refuse);

/// Whether the run's tokenizer exists on this machine: the files of data.tokenizer, or those kept with its checkpoints.
bool has_tokenizer(const config::Config& config);

/// Whether the folder of evaluation.data exists on this machine.
bool has_task_data(const config::Config& config);

/// For --dry-run and --plan: a line about each of these that samples or evaluation tasks need and that is missing.
std::vector<std::string> missing_decoder_files(const config::Config& config);

/// For --dry-run: opens and checks data and tokenizer like a run, and returns lines about them. A run may be planned on
/// another machine, so missing data is reported in a line; data that is present and unusable is a UserError, as in a
/// run.
std::vector<std::string> check_planned_data(const config::Config& config);

}  // namespace te::train
