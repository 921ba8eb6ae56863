// te-data instruct: conversations into a dataset with a loss mask.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_instruct_command(CLI::App& app);

}  // namespace te::data
