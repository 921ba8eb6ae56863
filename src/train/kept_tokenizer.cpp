#include "train/kept_tokenizer.h"

#include <vector>

#include "checkpoint/kept_files.h"
#include "core/error.h"
#include "core/log.h"
#include "text/tokenizer.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

/// Whether the spec is a path, not empty or `bytes`.
bool names_files(const std::string& tokenizer) {
  return !tokenizer.empty() && tokenizer != "bytes";
}

}  // namespace

std::unique_ptr<text::Tokenizer> check_tokenizer(const std::string& spec, const fs::path& directory) {
  if (!names_files(spec)) return spec.empty() ? nullptr : text::make_tokenizer(spec);
  if (checkpoint::tokenizer_files(spec).empty()) {
    const fs::path kept = checkpoint::find_kept_folder(directory);
    if (!kept.empty() && checkpoint::has_tokenizer(kept))  // resumed on another machine
      return text::make_tokenizer(kept.string());
    if (!kept.empty()) return nullptr;
    user_error(
        "data.tokenizer: {}: not a tokenizer file or folder; name the tokenizer of the datasets, or remove "
        "the key",
        spec);
  }
  return text::make_tokenizer(spec);
}

void keep_tokenizer(const std::string& spec, const fs::path& directory,
                    const std::vector<fs::path>& origins) {
  if (spec == "bytes") return;
  std::vector<checkpoint::KeptFile> files;
  if (names_files(spec)) files = checkpoint::tokenizer_files(spec);
  for (const fs::path& source : origins) {
    if (!files.empty()) break;
    if (source.empty()) continue;
    const fs::path kept = checkpoint::has_tokenizer(source) ? source : checkpoint::find_kept_folder(source);
    if (!kept.empty()) files = checkpoint::kept_files(kept);
  }
  if (!files.empty() && checkpoint::keep_files(files, directory))
    log_info("checkpoints include the tokenizer of {}", files.front().source.parent_path().string());
}

}  // namespace te::train
