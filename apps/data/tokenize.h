// te-data tokenize: text and JSON files into a dataset.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_tokenize_command(CLI::App& app);

}  // namespace te::data
