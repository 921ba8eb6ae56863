// te-data instruct: makes a dataset with a loss mask from conversations.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_instruct_command(CLI::App& app);

}  // namespace te::data
