// te-bench layer: times forward and backward of one transformer layer in BF16 and FP8, on one rank or on tensor- and
// context-parallel ranks.
#pragma once

#include <CLI/CLI.hpp>

#include "parallel/world.h"

namespace te::bench {

void add_layer_command(CLI::App& app, parallel::World& world);

}  // namespace te::bench
