// te-data tokenize: makes a dataset from text and JSON files.
#pragma once

#include <CLI/CLI.hpp>

namespace te::data {

void add_tokenize_command(CLI::App& app);

}  // namespace te::data
