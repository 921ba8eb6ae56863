// Small text helpers of the configuration. Private to this folder.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace te::config {

/// In double quotes, with YAML's escapes, so that it reads back and stays on one line.
std::string in_quotes(std::string_view text);

/// Text of a user inside a message: control characters escaped, at most 120 bytes shown.
std::string one_line(std::string_view text);

/// A key path inside a message: 'model.num_layers'.
std::string key_name(std::string_view path);

/// What another program calls a key of ours: a name, or a path with a section where that tells what is meant.
struct Synonym {
  std::string_view theirs, ours;
};
std::span<const Synonym> synonyms();

/// What to do instead of setting a key that other programs have and this one has not, or not so; empty for others.
std::string_view hint_of(std::string_view path);

/// "did you mean 'auto'?" for a value of checkpoint.resume that is meant for auto or never and would be taken for a
/// path; empty for others.
std::string meant_resume(std::string_view value);

/// "did you mean 'model.num_layers'?" for a key path that is not in the table.
std::string suggestion(std::string_view unknown_path);

}  // namespace te::config
