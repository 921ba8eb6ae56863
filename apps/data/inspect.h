// te-data inspect: shows counts, document lengths and samples of a dataset.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_inspect_command(CLI::App& app);

}  // namespace te::data
