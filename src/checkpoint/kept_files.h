// Files of a Hugging Face folder besides weights: the tokenizer's, and what the model's authors say of it. A checkpoint
// directory keeps those of its model, DIR/hugging_face: te-convert import and te-train put them there, te-generate and
// te-convert export take them from there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace te::checkpoint {

inline constexpr const char* kKeptFolder = "hugging_face";

/// A file and the name it has in a Hugging Face folder.
struct KeptFile {
  std::filesystem::path source;
  std::string name;
};

/// What a folder has of them.
std::vector<KeptFile> kept_files(const std::filesystem::path& folder);

/// A tokenizer as te-data knows it: a folder, or one of a tokenizer's files with what lies beside it but other
/// tokenizers. Empty when there is none.
std::vector<KeptFile> tokenizer_files(const std::filesystem::path& tokenizer);

/// True when a folder has a tokenizer that make_tokenizer reads.
bool has_tokenizer(const std::filesystem::path& folder);

/// The folder of a checkpoint (a step folder, or a checkpoint directory) that keeps such files; empty when there is
/// none.
std::filesystem::path kept_beside(const std::filesystem::path& checkpoint);

/// Copies and syncs them. UserError when one cannot be copied.
void copy_files(const std::vector<KeptFile>& files, const std::filesystem::path& to);

/// Makes them DIRECTORY/hugging_face, at one instant. False, and nothing is written, when it holds the same already.
bool keep_files(const std::vector<KeptFile>& files, const std::filesystem::path& directory);

}  // namespace te::checkpoint
