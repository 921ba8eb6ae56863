// The subcommands of te-convert, a file of apps/convert/ each.
#pragma once

#include <CLI/CLI.hpp>

namespace te::convert {

void add_import(CLI::App& app);
void add_export(CLI::App& app);
void add_reshard(CLI::App& app);
void add_inspect(CLI::App& app);
/// Sets the program's exit code to 1 where the two differ.
void add_diff(CLI::App& app, int& exit_code);

}  // namespace te::convert
