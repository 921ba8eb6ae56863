// Small text helpers of the configuration. Private to this folder.
#pragma once

#include <string>
#include <string_view>

namespace te::config {

/// In double quotes, with YAML's escapes, so that it reads back and stays on one line.
std::string in_quotes(std::string_view text);

/// Text of a user inside a message: control characters escaped, at most 120 bytes shown.
std::string one_line(std::string_view text);

/// A key path inside a message: 'model.num_layers'.
std::string key_name(std::string_view path);

/// Edits (insert, delete, replace, swap of neighbours) that turn one text into the other.
/// Source: the optimal string alignment distance (Damerau 1964; Wagner and Fischer 1974).
int edit_distance(std::string_view a, std::string_view b);

/// The key that another program calls `name`; empty when none is known.
std::string_view key_of_synonym(std::string_view name);

/// "did you mean 'model.num_layers'?" for a key path that is not in the table.
std::string suggestion(std::string_view unknown_path);

}  // namespace te::config
