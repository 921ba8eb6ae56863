// te-data merge: merges several datasets into one.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_merge_command(CLI::App& app);

}  // namespace te::data
