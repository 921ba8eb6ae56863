// te-bench comm: how fast the groups of a config's layout exchange what its steps exchange.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

/// The command runs on all ranks of the world, which must live as long as the app.
void add_comm_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
