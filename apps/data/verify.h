// te-data verify: checks that a dataset is complete and valid.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_verify_command(CLI::App& app);

}  // namespace te::data
