// Small text helpers of the configuration. Private to this folder.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace te::config {

/// `text` in double quotes with YAML escapes, on one line.
std::string in_quotes(std::string_view text);

/// User input for a message: control characters escaped, at most 120 bytes shown.
std::string one_line(std::string_view text);

/// A key path for a message: 'model.num_layers'.
std::string key_name(std::string_view path);

/// Another program's name for a key: a name, or a path if the section is needed to identify the key.
struct Synonym {
  std::string_view theirs, ours;
};
std::span<const Synonym> synonyms();

/// A hint for keys of other programs that have no equivalent, or a different one, here; empty for other paths.
std::string_view hint_of(std::string_view path);

/// "did you mean 'auto'?" for a value of checkpoint.resume that probably means auto or never but would be interpreted
/// as a path; empty for other values.
std::string resume_suggestion(std::string_view value);

/// "did you mean 'model.num_layers'?" for a key path that is not in the table.
std::string suggestion(std::string_view unknown_path);

}  // namespace te::config
