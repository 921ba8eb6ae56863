// Files of a Hugging Face folder other than weights: tokenizer, chat template, configs, license. A checkpoint directory
// keeps those of its model in DIR/hugging_face: te-convert import and te-train write them, te-generate and te-convert
// export read them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace te::checkpoint {

inline constexpr const char* kKeptFolder = "hugging_face";

/// A file and its name in a Hugging Face folder.
struct KeptFile {
  std::filesystem::path source;
  std::string name;
};

/// All such files of a folder.
std::vector<KeptFile> kept_files(const std::filesystem::path& folder);

/// The files of a tokenizer, given as for te-data: a folder, or one of the tokenizer's files. In the second case these
/// are the tokenizer's own files and the other kept files of its folder, without other tokenizers. Empty if there is no
/// tokenizer.
std::vector<KeptFile> tokenizer_files(const std::filesystem::path& tokenizer);

/// True if a folder has a tokenizer that make_tokenizer can read.
bool has_tokenizer(const std::filesystem::path& folder);

/// The folder with the kept files of a checkpoint (a step folder, or a checkpoint directory); empty if there is none.
std::filesystem::path find_kept_folder(const std::filesystem::path& checkpoint);

/// Copies the files to the folder `to` and syncs them. UserError if one cannot be copied.
void copy_files(const std::vector<KeptFile>& files, const std::filesystem::path& to);

/// Replaces DIRECTORY/hugging_face atomically by these files. Returns false, and writes nothing, if it already has the
/// same files.
bool keep_files(const std::vector<KeptFile>& files, const std::filesystem::path& directory);

}  // namespace te::checkpoint
