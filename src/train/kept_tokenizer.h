// The tokenizer that a run's checkpoints keep beside them, so that te-generate and te-convert export find it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace te::train {

/// UserError when data.tokenizer (`spec`) names a path without a tokenizer (unless `directory`, that of the
/// checkpoints, keeps one already), or a tokenizer that te-data cannot read. Returns the tokenizer; null where none is
/// named. It may have tokens that the model does not have: those that occur are checked where they are read.
std::unique_ptr<text::Tokenizer> check_tokenizer(const std::string& spec,
                                                 const std::filesystem::path& directory);

/// Copies to `directory` what data.tokenizer (`spec`) names, else what is kept beside the first of `origins` that has a
/// tokenizer (checkpoints that the weights came from; may be empty). One rank, before the first step. UserError when it
/// cannot be written.
void keep_tokenizer(const std::string& spec, const std::filesystem::path& directory,
                    const std::vector<std::filesystem::path>& origins);

}  // namespace te::train
