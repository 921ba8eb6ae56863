#include "checkpoint/kept_files.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <system_error>

#include "checkpoint/folder.h"
#include "core/error.h"
#include "core/file.h"

namespace te::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A tokenizer is tokenizer.json, tokenizer.model, or the pair vocab.json and merges.txt.
constexpr std::array<const char*, 4> kTokenizers = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                                    "merges.txt"};
constexpr std::array<const char*, 10> kCompanions = {"config.json",
                                                     "generation_config.json",
                                                     "tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "chat_template.jinja",
                                                     "chat_template.json",
                                                     "chat_turns.json",
                                                     "LICENSE",
                                                     "LICENSE.txt"};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

void add_file(std::vector<KeptFile>& files, const fs::path& source, const char* name) {
  if (is_file(source)) files.push_back({source, name});
}

/// Adds GPT-2's vocabulary and merges; `old_names`: under OpenAI's names encoder.json and vocab.bpe.
void add_pair(std::vector<KeptFile>& files, const fs::path& folder, bool old_names) {
  add_file(files, folder / (old_names ? "encoder.json" : "vocab.json"), "vocab.json");
  add_file(files, folder / (old_names ? "vocab.bpe" : "merges.txt"), "merges.txt");
}

std::string bytes_of(const fs::path& file) {
  FileText read = read_file(file, kAnySize);
  return std::move(read.text);
}

bool holds_the_same(const fs::path& folder, const std::vector<KeptFile>& files) {
  std::error_code error;
  const auto begin = fs::directory_iterator(folder, error);
  if (error || std::distance(begin, {}) != static_cast<ptrdiff_t>(files.size())) return false;
  return std::ranges::all_of(files, [&](const KeptFile& file) {
    return is_file(folder / file.name) && bytes_of(folder / file.name) == bytes_of(file.source);
  });
}

}  // namespace

std::vector<KeptFile> kept_files(const fs::path& folder) {
  std::vector<KeptFile> files;
  for (const char* name : kCompanions) add_file(files, folder / name, name);
  for (const char* name : kTokenizers) add_file(files, folder / name, name);
  if (!is_file(folder / "vocab.json")) add_pair(files, folder, true);
  return files;
}

std::vector<KeptFile> tokenizer_files(const fs::path& tokenizer) {
  if (!is_file(tokenizer)) return has_tokenizer(tokenizer) ? kept_files(tokenizer) : std::vector<KeptFile>{};
  const fs::path folder = tokenizer.parent_path();
  const std::string name = tokenizer.filename();
  std::vector<KeptFile> files;
  for (const char* companion : kCompanions) add_file(files, folder / companion, companion);
  if (name == "vocab.json" || name == "merges.txt") {
    add_pair(files, folder, false);
  } else if (name == "encoder.json" || name == "vocab.bpe") {
    add_pair(files, folder, true);
  } else {
    add_file(files, tokenizer, tokenizer.extension() == ".model" ? "tokenizer.model" : "tokenizer.json");
  }
  return files;
}

bool has_tokenizer(const fs::path& folder) {
  const auto has = [&](const char* name) { return is_file(folder / name); };
  return has("tokenizer.json") || has("tokenizer.model") || has("vocab.json") || has("encoder.json");
}

fs::path find_kept_folder(const fs::path& checkpoint) {
  fs::path absolute = fs::absolute(checkpoint).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  std::error_code error;
  for (const fs::path& directory : {absolute, absolute.parent_path()})
    if (fs::is_directory(directory / kKeptFolder, error)) return directory / kKeptFolder;
  return {};
}

void copy_files(const std::vector<KeptFile>& files, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) user_error("{}: cannot be created: {}", to.string(), error.message());
  for (const KeptFile& file : files) {
    fs::copy_file(file.source, to / file.name, fs::copy_options::overwrite_existing, error);
    if (error)
      user_error("{}: cannot be copied to {}: {}", file.source.string(), to.string(), error.message());
    sync_path(to / file.name);
  }
}

bool keep_files(const std::vector<KeptFile>& files, const fs::path& directory) {
  const fs::path kept = directory / kKeptFolder, temporary = kept.string() + ".tmp";
  std::error_code ignored;
  fs::remove_all(temporary, ignored);  // left by a run that was killed
  if (holds_the_same(kept, files)) return false;
  guard_file_system([&] {
    copy_files(files, temporary);
    sync_path(temporary);
    move_into_place(temporary, kept);
    sync_path(directory);
  });
  return true;
}

}  // namespace te::checkpoint
