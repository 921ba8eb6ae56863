// te-bench comm: times the collectives and point-to-point communication of a config's layout with its sizes.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

/// The command runs on all ranks of the world, which must live as long as the app.
void add_comm_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
