#include "train/kept_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "checkpoint/kept_files.h"
#include "core/error.h"
#include "core/log.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hash.h"

namespace te::train {
namespace {

namespace fs = std::filesystem;

/// Whether the spec is a path, not empty or `bytes`.
bool names_files(const std::string& tokenizer) {
  return !tokenizer.empty() && tokenizer != "bytes";
}

/// The folder with the kept files of the first origin that has some; empty if there is none.
fs::path first_kept(const std::vector<fs::path>& origins) {
  for (const fs::path& source : origins) {
    if (source.empty()) continue;
    const fs::path kept = checkpoint::has_tokenizer(source) ? source : checkpoint::find_kept_folder(source);
    if (!kept.empty() && !checkpoint::kept_files(kept).empty()) return kept;
  }
  return {};
}

/// True for the files with the ids of a model's special tokens.
bool has_token_ids(const checkpoint::KeptFile& file) {
  return file.name == "config.json" || file.name == "generation_config.json";
}

/// Whether both are the same tokenizer and end documents with the same token, in which models of a family can differ.
bool are_equal(const std::string& a, const std::string& b) {
  try {
    const auto first = text::make_tokenizer(a), second = text::make_tokenizer(b);
    return first->end_of_document() == second->end_of_document() &&
           text::tokenizer_hash(*first) == text::tokenizer_hash(*second);
  } catch (const UserError&) {  // te-data cannot read the tokenizer of the origin
    return false;
  }
}

/// The files of `origin` with the ids of special tokens, if `files`, which are the tokenizer `spec`'s, have none and
/// the origin has the same tokenizer.
std::vector<checkpoint::KeptFile> missing_token_ids(const std::vector<checkpoint::KeptFile>& files,
                                                    const std::string& spec, const fs::path& origin) {
  std::vector<checkpoint::KeptFile> ids;
  if (std::ranges::any_of(files, has_token_ids)) return ids;
  std::ranges::copy_if(checkpoint::kept_files(origin), std::back_inserter(ids), has_token_ids);
  if (!ids.empty() && !are_equal(spec, origin.string())) ids.clear();
  return ids;
}

}  // namespace

fs::path kept_by_resumed(const config::CheckpointConfig& config) {
  if (config.resume == "never") return {};
  return checkpoint::find_kept_folder(config.resume == "auto" ? config.directory : config.resume);
}

std::unique_ptr<text::Tokenizer> check_tokenizer(const std::string& spec, const fs::path& kept) {
  if (!names_files(spec)) return spec.empty() ? nullptr : text::make_tokenizer(spec);
  if (checkpoint::tokenizer_files(spec).empty()) {
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

fs::path origin_of_token_ids(const config::Config& config) {
  const std::string& spec = config.data.tokenizer;
  const fs::path origin = first_kept({kept_by_resumed(config.checkpoint), config.checkpoint.init_from});
  if (origin.empty() || !names_files(spec)) return {};
  const std::vector<checkpoint::KeptFile> files = checkpoint::tokenizer_files(spec);
  return files.empty() || missing_token_ids(files, spec, origin).empty() ? fs::path() : origin;
}

void keep_tokenizer(const std::string& spec, const fs::path& directory,
                    const std::vector<fs::path>& origins) {
  std::vector<checkpoint::KeptFile> files;
  if (names_files(spec)) files = checkpoint::tokenizer_files(spec);
  const fs::path origin = first_kept(origins);
  if (!origin.empty() && spec != "bytes")
    std::ranges::copy(files.empty() ? checkpoint::kept_files(origin) : missing_token_ids(files, spec, origin),
                      std::back_inserter(files));
  std::error_code error;
  if (files.empty() && !fs::equivalent(origin, directory / checkpoint::kKeptFolder, error))
    fs::remove_all(directory / checkpoint::kKeptFolder, error);  // of an earlier run
  if (!files.empty() && checkpoint::keep_files(files, directory))
    log_info("checkpoints include the tokenizer of {}", files.front().source.parent_path().string());
}

}  // namespace te::train
