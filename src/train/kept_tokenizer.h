// The tokenizer that is kept next to a run's checkpoints, where te-generate and te-convert export find it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "text/tokenizer.h"

namespace te::train {

/// The folder with the tokenizer that is kept next to the checkpoint that a run resumes; empty if there is none, or for
/// a new run.
std::filesystem::path kept_by_resumed(const config::CheckpointConfig& config);

/// Reads data.tokenizer (`spec`); null when it is not set. UserError when the path has no tokenizer and neither has
/// `kept` (kept_by_resumed(); may be empty), or te-data cannot read it. The tokenizer may have tokens beyond the
/// model's vocabulary: token IDs are checked when data is read.
std::unique_ptr<text::Tokenizer> check_tokenizer(const std::string& spec, const std::filesystem::path& kept);

/// The folder from which keep_tokenizer() copies the ids of special tokens next to data.tokenizer; empty if there is
/// none.
std::filesystem::path origin_of_token_ids(const config::Config& config);

/// Copies the tokenizer of data.tokenizer (`spec`) to `directory`. Without one, copies the tokenizer kept next to the
/// first of `origins` that has one (checkpoints that the weights came from; may be empty). If data.tokenizer is that
/// tokenizer, in a folder without config.json and generation_config.json, these two are copied as well: they have the
/// ids of special tokens. Without any tokenizer, removes the one that an earlier run has left in `directory`. Called on
/// one rank before the first step. UserError when it cannot be written.
void keep_tokenizer(const std::string& spec, const std::filesystem::path& directory,
                    const std::vector<std::filesystem::path>& origins);

}  // namespace te::train
