// The subcommands of te-convert. Each has its own file in apps/convert/.
#pragma once

#include <CLI/CLI.hpp>

namespace te::convert {

void add_import(CLI::App& app);
void add_export(CLI::App& app);
void add_merge(CLI::App& app);
void add_reshard(CLI::App& app);
void add_inspect(CLI::App& app);
/// Sets `exit_code` to 1 if the two differ.
void add_diff(CLI::App& app, int& exit_code);

}  // namespace te::convert
