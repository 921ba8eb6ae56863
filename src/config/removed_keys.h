// Keys of earlier versions: what replaces them, and configs that were stored with them. Private to this folder; the
// functions for stored configs are in config.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace te::config {

struct RemovedKey {
  std::string_view path;
  std::string_view instead;  ///< what te-train does now, and what to do with the key
  /// The value with which a run computed what this version computes, as to_yaml wrote it, or "=KEY": the value of that
  /// key. Empty: any value, because the key did not change results.
  std::string_view kept = {};
  std::string_view only_if =
      {};  ///< "KEY=VALUE|VALUE": the key had an effect only with these values of another key
};
std::span<const RemovedKey> removed_keys();

/// "'a.b' was removed: INSTEAD" for a removed key, "'a.b' is unknown; did you mean ..." for others.
std::string unknown_key_message(std::string_view path);

}  // namespace te::config
