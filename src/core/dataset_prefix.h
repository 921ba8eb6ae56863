// The rule for the names of datasets, which command lines and config keys share.
#pragma once

#include <string_view>

namespace te {

/// The prefix if `name` is a file of a dataset, PREFIX.bin or PREFIX.idx, instead of a prefix; else an empty text.
inline std::string_view prefix_of_dataset_file(std::string_view name) {
  const bool is_file = name.ends_with(".bin") || name.ends_with(".idx");
  return is_file ? name.substr(0, name.size() - 4) : std::string_view();
}

}  // namespace te
