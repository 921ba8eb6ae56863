// te-data verify: is a dataset whole?.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_verify_command(CLI::App& app);

}  // namespace te::data
