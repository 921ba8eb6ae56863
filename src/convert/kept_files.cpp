#include "convert/kept_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace te::convert {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 13> kNames = {"config.json",        "generation_config.json",
                                                "tokenizer.json",     "tokenizer_config.json",
                                                "tokenizer.model",    "vocab.json",
                                                "merges.txt",         "special_tokens_map.json",
                                                "added_tokens.json",  "chat_template.jinja",
                                                "chat_template.json", "LICENSE",
                                                "LICENSE.txt"};

}  // namespace

std::vector<fs::path> kept_files(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const char* name : kNames)
    if (fs::is_regular_file(folder / name, error)) found.emplace_back(name);
  return found;
}

void copy_kept_files(const fs::path& from, const fs::path& to, bool config) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) user_error("{}: cannot be made: {}", to.string(), error.message());
  for (const fs::path& name : kept_files(from)) {
    if (!config && name == "config.json") continue;
    fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, error);
    if (error)
      user_error("{}: cannot be copied to {}: {}", (from / name).string(), to.string(), error.message());
  }
}

fs::path kept_beside(const fs::path& step_folder) {
  fs::path absolute = fs::absolute(step_folder).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  const fs::path kept = absolute.parent_path() / kKeptFolder;
  std::error_code error;
  return fs::is_directory(kept, error) ? kept : fs::path();
}

bool has_tokenizer(const fs::path& folder) {
  std::error_code error;
  return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view name) {
    return (name == "tokenizer.json" || name == "tokenizer.model" || name == "vocab.json") &&
           fs::is_regular_file(folder / name, error);
  });
}

}  // namespace te::convert
