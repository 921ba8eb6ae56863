// te-bench step: whole optimizer steps of a config on random tokens.
#pragma once

#include <CLI/CLI.hpp>

namespace te::bench {

void add_step_command(CLI::App& app);

}  // namespace te::bench
