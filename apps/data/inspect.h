// te-data inspect: what is in a dataset, counts, lengths and samples.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_inspect_command(CLI::App& app);

}  // namespace te::data
