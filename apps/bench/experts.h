// te-bench experts: times the grouped GEMMs of a mixture of experts, with balanced and with random routing.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_experts_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
