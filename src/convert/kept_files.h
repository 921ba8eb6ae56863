// Files of a Hugging Face folder besides weights: the tokenizer's, and what the model's authors say of it. An imported
// checkpoint keeps them in its directory, an export takes them from there.
#pragma once

#include <filesystem>
#include <vector>

namespace te::convert {

/// Where an imported checkpoint directory keeps them.
inline constexpr const char* kKeptFolder = "hugging_face";

/// Those of them that a folder has, by name.
std::vector<std::filesystem::path> kept_files(const std::filesystem::path& folder);

/// Copies them; config.json only if asked for. UserError when one cannot be copied.
void copy_kept_files(const std::filesystem::path& from, const std::filesystem::path& to, bool config);

/// DIRECTORY/hugging_face for a step folder of DIRECTORY, if it is there; else empty.
std::filesystem::path kept_beside(const std::filesystem::path& step_folder);

/// True when a folder has a tokenizer that make_tokenizer reads.
bool has_tokenizer(const std::filesystem::path& folder);

}  // namespace te::convert
