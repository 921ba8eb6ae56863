// te-bench step: times whole optimizer steps of a config with random tokens.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

/// The command runs on all ranks of the world, which must live as long as the app.
void add_step_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
