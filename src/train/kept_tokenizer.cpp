#include "train/kept_tokenizer.h"

#include <vector>

#include "checkpoint/kept_files.h"
#include "core/error.h"
#include "core/log.h"
#include "text/tokenizer.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

/// A path, as opposed to nothing or `bytes`.
bool names_files(const std::string& tokenizer) {
  return !tokenizer.empty() && tokenizer != "bytes";
}

}  // namespace

void check_tokenizer(const std::string& spec, int64_t vocab_size, const fs::path& directory) {
  if (!names_files(spec)) return;
  if (checkpoint::tokenizer_files(spec).empty()) {
    if (!checkpoint::kept_beside(directory).empty()) return;  // resumed on another machine
    user_error(
        "data.tokenizer: {}: is no tokenizer's file or folder; name the one of the datasets, or leave the "
        "key "
        "out",
        spec);
  }
  const int64_t tokens = text::make_tokenizer(spec)->vocab_size();
  if (tokens > vocab_size) {
    user_error("model.vocab_size ({}) is below the {} tokens of data.tokenizer {}", vocab_size, tokens, spec);
  }
}

void keep_tokenizer(const std::string& spec, const fs::path& directory,
                    const std::vector<fs::path>& origins) {
  if (spec == "bytes") return;
  std::vector<checkpoint::KeptFile> files;
  if (names_files(spec)) files = checkpoint::tokenizer_files(spec);
  for (const fs::path& source : origins) {
    if (!files.empty()) break;
    const fs::path kept = source.empty() ? fs::path() : checkpoint::kept_beside(source);
    if (!kept.empty()) files = checkpoint::kept_files(kept);
  }
  if (!files.empty() && checkpoint::keep_files(files, directory))
    spdlog::info("checkpoints keep the tokenizer of {}", files.front().source.parent_path().string());
}

}  // namespace te::train
